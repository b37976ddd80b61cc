/* Columns to the records of a Kafka batch in one pass: what `encode.py` does with numpy and Arrow.

   Only records without headers. Nothing is read beyond the columns' buffers, whatever their ends say, and nothing is
   written beyond `room`. `make setup` compiles this file if the machine has a C compiler. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The most bytes of a record besides its key and value: six numbers, attributes, and that it has no headers. */
enum { RECORD_BYTES_MAX = 48 };

/* One column of byte strings as Arrow has it, from row `start` on. */
struct column {
    const uint8_t *ends; /* int32; NULL if all are null */
    int64_t ends_bytes;
    const uint8_t *data;
    int64_t data_bytes;
    const uint8_t *valid; /* a bit for each value; NULL if none is null */
    int64_t valid_bytes;
    int64_t start;
};

static int64_t end_at(const struct column *column, int64_t row)
{
    int32_t end;
    memcpy(&end, column->ends + 4 * (column->start + row), sizeof end);
    return end;
}

/* The bytes of all values; -1 if the column names what it does not have. */
static int64_t bytes_of(const struct column *column, int64_t rows)
{
    int64_t stop = column->start + rows;
    if (!column->ends)
        return 0;
    if (column->start < 0 || column->ends_bytes < 4 * (stop + 1) ||
        (column->valid && column->valid_bytes < (stop + 7) / 8))
        return -1;
    if (end_at(column, 0) < 0 || end_at(column, rows) > column->data_bytes)
        return -1;
    for (int64_t row = 0; row < rows; row++)
        if (end_at(column, row) > end_at(column, row + 1))
            return -1;
    return end_at(column, rows) - end_at(column, 0);
}

/* The bytes of one value, which begins at `data`; -1 if it is null. */
static int64_t value_at(const struct column *column, int64_t row, const uint8_t **data)
{
    int64_t at = column->start + row;
    if (!column->ends || (column->valid && !(column->valid[at >> 3] >> (at & 7) & 1)))
        return -1;
    int64_t begin = end_at(column, row);
    *data = column->data + begin;
    return end_at(column, row + 1) - begin;
}

static uint64_t zigzag(int64_t value)
{
    return (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
}

static int64_t number_bytes(int64_t value)
{
    int64_t size = 1;
    for (uint64_t raw = zigzag(value); raw > 127; raw >>= 7)
        size++;
    return size;
}

static uint8_t *put_number(uint8_t *to, int64_t value)
{
    uint64_t raw = zigzag(value);
    for (; raw > 127; raw >>= 7)
        *to++ = (uint8_t)(raw & 127) | 128;
    *to++ = (uint8_t)raw;
    return to;
}

static uint8_t *put_piece(uint8_t *to, const uint8_t *data, int64_t size)
{
    to = put_number(to, size);
    if (size > 0) {
        memcpy(to, data, (size_t)size);
        to += size;
    }
    return to;
}

/* Write `rows` records, with times relative to the first, to `out`. Return their bytes; -1 if there is no room, or if a
   column names what it does not have. */
int64_t deltamq_encode(
    const int64_t *times,
    const struct column *key,
    const struct column *value,
    int64_t rows,
    uint8_t *out,
    int64_t room)
{
    int64_t keys = bytes_of(key, rows), values = bytes_of(value, rows);
    if (keys < 0 || values < 0 || rows * RECORD_BYTES_MAX + keys + values > room)
        return -1;
    uint8_t *to = out;
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *key_data = NULL, *value_data = NULL;
        int64_t key_size = value_at(key, row, &key_data), value_size = value_at(value, row, &value_data);
        int64_t delta = (int64_t)((uint64_t)times[row] - (uint64_t)times[0]);
        int64_t size = 2 + number_bytes(delta) + number_bytes(row) + number_bytes(key_size) + number_bytes(value_size);
        size += (key_size > 0 ? key_size : 0) + (value_size > 0 ? value_size : 0);
        to = put_number(to, size);
        *to++ = 0; /* attributes, which no version uses */
        to = put_number(to, delta);
        to = put_number(to, row);
        to = put_piece(to, key_data, key_size);
        to = put_piece(to, value_data, value_size);
        *to++ = 0; /* headers */
    }
    return to - out;
}
