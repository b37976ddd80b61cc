/* Records of Kafka's batches to columns in one pass: what `decode.py` does with numpy, without its forty calls.

   Only batches without headers and without any fault are decoded. For all others 1 is returned: the caller decodes them
   in Python, which finds the fault and says it. So nothing is trusted here, and nothing is explained.

   `make setup` compiles this file if the machine has a C compiler. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { VARINT_BYTES_MAX = 10 };

/* One column of byte strings, as Arrow has it: ends, bytes, and a bit for each value that is not null. */
struct column {
    int32_t *ends;
    uint8_t *bytes;
    uint8_t *valid;
    size_t at;
    int64_t nulls;
};

/* Read a number in zigzag order before `end`, and step behind it. */
static int number(const uint8_t *data, size_t end, size_t *at, int64_t *value)
{
    uint64_t raw = 0;
    for (int i = 0; i < VARINT_BYTES_MAX && *at < end; i++) {
        uint8_t byte = data[(*at)++];
        raw |= (uint64_t)(byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            *value = (int64_t)((raw >> 1) ^ -(raw & 1));
            return 0;
        }
    }
    return 1;
}

/* Copy a key or a value, which stands behind its length, to the end of its column. */
static int piece(const uint8_t *data, size_t end, size_t *at, struct column *to, size_t row)
{
    int64_t size;
    if (number(data, end, at, &size) || size < -1)
        return 1;
    if (size < 0) {
        to->nulls++;
    } else {
        if ((uint64_t)size > end - *at || (uint64_t)size > INT32_MAX - to->at)
            return 1;
        memcpy(to->bytes + to->at, data + *at, (size_t)size);
        to->at += (size_t)size;
        *at += (size_t)size;
        to->valid[row / 8] |= (uint8_t)(1 << row % 8);
    }
    to->ends[row + 1] = (int32_t)to->at;
    return 0;
}

/* Decode `batches` batches whose records follow each other in `data`. `heads` has three numbers for each: its records,
   their bytes, and the time to which theirs are relative. `keys` and `values` have room for all of `data`, and `columns`
   for what has a fixed size, one after another:

       times  int64[rows]    nulls of keys, of values  int64[2]    ends of keys, of values  int32[rows + 1] each
       bits of keys, of values  uint8[rows / 8 + 1] each

   Return 0, or 1 if the records are not decoded. */
int deltamq_decode(
    const uint8_t *data, int batches, const int64_t *heads, size_t rows, uint8_t *columns, uint8_t *keys, uint8_t *values)
{
    size_t bits = rows / 8 + 1;
    int64_t *times = (int64_t *)columns, *nulls = times + rows;
    int32_t *ends = (int32_t *)(nulls + 2);
    uint8_t *valid = (uint8_t *)(ends + 2 * (rows + 1));
    struct column key = {ends, keys, valid, 0, 0};
    struct column value = {ends + rows + 1, values, valid + bits, 0, 0};
    size_t at = 0, row = 0;
    key.ends[0] = value.ends[0] = 0;
    memset(valid, 0, 2 * bits);
    for (int batch = 0; batch < batches; batch++, heads += 3) {
        size_t end = at + (size_t)heads[1];
        for (int64_t i = 0; i < heads[0]; i++, row++) {
            int64_t size, delta, offset, headers;
            if (number(data, end, &at, &size) || size < 1 || (uint64_t)size > end - at)
                return 1;
            size_t stop = at + (size_t)size;
            at++; /* attributes, which no version uses */
            if (number(data, stop, &at, &delta) || number(data, stop, &at, &offset) || offset != i)
                return 1;
            if (piece(data, stop, &at, &key, row) || piece(data, stop, &at, &value, row))
                return 1;
            if (number(data, stop, &at, &headers) || headers || at != stop)
                return 1;
            times[row] = (int64_t)((uint64_t)heads[2] + (uint64_t)delta);
        }
        if (at != end)
            return 1;
    }
    nulls[0] = key.nulls;
    nulls[1] = value.nulls;
    return 0;
}
