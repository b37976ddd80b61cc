/* Few rows as a parquet file in one pass: what `small_parquet.py` does with some hundred calls, to the same bytes.

   The caller gives the columns as Arrow has them, or says what they hold, and all bytes that depend on the number of
   rows alone. Nothing is read beyond the columns' buffers, whatever their ends say, and nothing is written beyond
   `room`. `make setup` compiles
   this file if the machine has a C compiler. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { POLYNOMIAL = 0xEDB88320, LANES = 8, STREAMED_BYTES_MIN = 1024 };
enum { VARINT_BYTES_MAX = 10, PAGE_HEAD_BYTES_MAX = 64, CHUNK_BYTES_MAX = 48 };

/* What a leaf column holds: nulls; what Arrow's buffers hold; numbers that grow by one; each of some values repeated as
   its count says; a prefix and the number of the row in eight hexadecimal digits. */
enum kind { NULLS, COLUMN, GROWING, REPEATED, NUMBERED };
enum { PREFIX_BYTES = 16, DIGITS = 8 };

/* What the caller knows of a leaf column: constants of the number of rows, then what the column holds. */
struct leaf {
    const uint8_t *null_page;
    int64_t null_page_bytes;
    const uint8_t *chunk_start;
    int64_t chunk_start_bytes;
    int64_t width;         /* bytes of a value; 0 for texts */
    int64_t has_levels;    /* the level of a value, if the column may have nulls; one less is that of a null; else 0 */
    int64_t kind;
    const uint8_t *values; /* values of a fixed width, those that are repeated of 64 bits; or the texts' ends */
    int64_t values_bytes;
    const uint8_t *text; /* the prefix of NUMBERED */
    int64_t text_bytes;
    const uint8_t *valid; /* a bit for each value; NULL if none is null */
    int64_t valid_bytes;
    const int64_t *counts; /* how often each value of REPEATED comes */
    int64_t counts_bytes;
    int64_t start; /* position of the first row in `values` and `valid`; the first number of GROWING */
};

struct file {
    const uint8_t *page_end;
    int64_t page_end_bytes;
    const uint8_t *schema; /* the footer's beginning */
    int64_t schema_bytes;
    const uint8_t *tail; /* the footer's end: key values, and who made the file */
    int64_t tail_bytes;
    int64_t pages_end_max;
};

/* Checksums ---------------------------------------------------------------------------------------------------- */

static uint32_t table[LANES][256];
/* x to the power of 8 * 2^n, modulo the polynomial, bits reversed */
static uint32_t powers[32];

static uint32_t product(uint32_t a, uint32_t b)
{
    uint32_t sum = 0;
    for (int bit = 31; bit >= 0; bit--) {
        sum ^= (a >> bit & 1) ? b : 0;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return sum;
}

__attribute__((constructor)) static void prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
        table[0][byte] = value;
    }
    for (int lane = 1; lane < LANES; lane++)
        for (int byte = 0; byte < 256; byte++)
            table[lane][byte] = table[lane - 1][byte] >> 8 ^ table[0][table[lane - 1][byte] & 0xFF];
    powers[0] = 1u << (31 - 8);
    for (int n = 1; n < 32; n++)
        powers[n] = product(powers[n - 1], powers[n - 1]);
}

/* Eight more bytes of a checksum. */
static inline uint32_t step(uint32_t crc, const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, LANES);
    word ^= crc;
    return table[7][word & 0xFF] ^ table[6][word >> 8 & 0xFF] ^ table[5][word >> 16 & 0xFF] ^
           table[4][word >> 24 & 0xFF] ^ table[3][word >> 32 & 0xFF] ^ table[2][word >> 40 & 0xFF] ^
           table[1][word >> 48 & 0xFF] ^ table[0][word >> 56];
}

/* The checksum of bytes with checksum `first`, followed by `size` bytes with checksum `second`. */
static uint32_t joined(uint32_t first, uint32_t second, uint64_t size)
{
    for (int n = 0; size && n < 32; size >>= 1, n++)
        if (size & 1)
            first = product(powers[n], first);
    return first ^ second;
}

/* The checksum of bytes with checksum `crc`, followed by `data`. Each step waits for the one before, so many bytes are
   taken as four streams at a time. */
static uint32_t checksum(uint32_t crc, const uint8_t *data, size_t size)
{
    size_t stream = size / 4 / LANES * LANES;
    if (size >= STREAMED_BYTES_MIN) {
        const uint8_t *second = data + stream, *third = second + stream, *fourth = third + stream;
        uint32_t a = ~crc, b = ~0u, c = ~0u, d = ~0u;
        for (size_t at = 0; at < stream; at += LANES) {
            a = step(a, data + at);
            b = step(b, second + at);
            c = step(c, third + at);
            d = step(d, fourth + at);
        }
        crc = joined(joined(joined(~a, ~b, stream), ~c, stream), ~d, stream);
        data = fourth + stream;
        size -= 4 * stream;
    }
    crc = ~crc;
    for (; size >= LANES; size -= LANES, data += LANES)
        crc = step(crc, data);
    while (size--)
        crc = crc >> 8 ^ table[0][(crc ^ *data++) & 0xFF];
    return ~crc;
}

/* Pieces ------------------------------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *to, const void *data, size_t size)
{
    if (size)
        memcpy(to, data, size);
    return to + size;
}

static uint8_t *put_varint(uint8_t *to, uint64_t value)
{
    for (; value > 127; value >>= 7)
        *to++ = (uint8_t)(value & 127) | 128;
    *to++ = (uint8_t)value;
    return to;
}

static uint8_t *put_zigzag(uint8_t *to, int64_t value)
{
    return put_varint(to, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

static uint8_t *put_int32(uint8_t *to, int32_t value)
{
    return put(to, &value, sizeof value);
}

static int is_valid(const struct leaf *leaf, int64_t row)
{
    int64_t at = leaf->start + row;
    return !leaf->valid || leaf->valid[at >> 3] >> (at & 7) & 1;
}

/* Where the text of the row before `row` ends, and the row's begins. */
static int32_t end_at(const struct leaf *leaf, int64_t row)
{
    int32_t end;
    memcpy(&end, leaf->values + 4 * (leaf->start + row), sizeof end);
    return end;
}

/* Whether `count` texts lie in the column's buffers. */
static int has_texts(const struct leaf *leaf, int64_t count)
{
    if (leaf->values_bytes < 4 * (leaf->start + count + 1) || end_at(leaf, 0) < 0)
        return 0;
    for (int64_t at = 0; at < count; at++)
        if (end_at(leaf, at) > end_at(leaf, at + 1))
            return 0;
    return end_at(leaf, count) <= leaf->text_bytes;
}

/* Whether the counts of repeated values are those of all rows, and the values are there. */
static int is_repeated(const struct leaf *leaf, int64_t rows)
{
    int64_t different = leaf->counts_bytes / 8, sum = 0;
    for (int64_t at = 0; at < different; at++) {
        if (leaf->counts[at] < 0 || leaf->counts[at] > rows - sum)
            return 0;
        sum += leaf->counts[at];
    }
    if (sum != rows || leaf->valid || leaf->start)
        return 0;
    return leaf->width ? leaf->values_bytes >= 8 * different : has_texts(leaf, different);
}

/* Whether all that a column's rows name lies in its buffers. */
static int is_whole(const struct leaf *leaf, int64_t rows)
{
    int64_t stop = leaf->start + rows;
    if (leaf->kind == GROWING)
        return leaf->width == 8 && !leaf->valid;
    if (leaf->kind == REPEATED)
        return is_repeated(leaf, rows);
    if (leaf->kind == NUMBERED)
        return !leaf->width && leaf->text_bytes == PREFIX_BYTES && !leaf->valid;
    if (leaf->start < 0 || (leaf->valid && leaf->valid_bytes < (stop + 7) / 8))
        return 0;
    return leaf->width ? leaf->values_bytes >= stop * leaf->width : has_texts(leaf, rows);
}

/* Definition levels: runs of rows with a value, and without. */
static uint8_t *put_levels(uint8_t *to, const struct leaf *leaf, int64_t rows)
{
    uint8_t *begin = to, *at = to + 4;
    for (int64_t row = 0, stop; row < rows; row = stop) {
        int level = is_valid(leaf, row);
        for (stop = leaf->valid ? row + 1 : rows; stop < rows && is_valid(leaf, stop) == level; stop++)
            ;
        at = put_varint(at, (uint64_t)(stop - row) << 1);
        *at++ = (uint8_t)(leaf->has_levels - 1 + level);
    }
    put_int32(begin, (int32_t)(at - begin - 4));
    return at;
}

static uint8_t *put_numbers(uint8_t *to, const struct leaf *leaf, int64_t rows)
{
    size_t width = (size_t)leaf->width;
    if (leaf->kind == GROWING) {
        for (int64_t number = leaf->start; number < leaf->start + rows; number++)
            to = put(to, &number, sizeof number);
        return to;
    }
    if (leaf->kind == REPEATED) {
        /* the lower bytes of a number come first on every machine that this is for */
        for (int64_t at = 0; at < leaf->counts_bytes / 8; at++)
            for (int64_t row = 0; row < leaf->counts[at]; row++)
                to = put(to, leaf->values + 8 * at, width);
        return to;
    }
    const uint8_t *values = leaf->values + (size_t)leaf->start * width;
    if (!leaf->valid)
        return put(to, values, (size_t)rows * width);
    for (int64_t row = 0; row < rows; row++)
        if (is_valid(leaf, row))
            to = put(to, values + (size_t)row * width, width);
    return to;
}

static uint8_t *put_text(uint8_t *to, const struct leaf *leaf, int64_t at)
{
    int32_t begin = end_at(leaf, at), size = end_at(leaf, at + 1) - begin;
    to = put_int32(to, size);
    return put(to, leaf->text + begin, (size_t)size);
}

static uint8_t *put_texts(uint8_t *to, const struct leaf *leaf, int64_t rows)
{
    if (leaf->kind == NUMBERED) {
        for (int64_t row = 0; row < rows; row++) {
            to = put_int32(to, PREFIX_BYTES + DIGITS);
            to = put(to, leaf->text, PREFIX_BYTES);
            for (int digit = DIGITS - 1; digit >= 0; digit--)
                *to++ = (uint8_t)"0123456789abcdef"[row >> 4 * digit & 15];
        }
        return to;
    }
    if (leaf->kind == REPEATED) {
        for (int64_t at = 0; at < leaf->counts_bytes / 8; at++)
            for (int64_t row = 0; row < leaf->counts[at]; row++)
                to = put_text(to, leaf, at);
        return to;
    }
    for (int64_t row = 0; row < rows; row++)
        if (is_valid(leaf, row))
            to = put_text(to, leaf, row);
    return to;
}

/* The most bytes that a column's page may take. */
static int64_t page_bytes_max(const struct leaf *leaf, int64_t rows)
{
    /* a run of one row takes two bytes; one of all rows a length of ten at most */
    int64_t levels = leaf->has_levels ? 4 + 2 * rows + VARINT_BYTES_MAX : 0;
    if (leaf->width)
        return levels + leaf->width * rows;
    if (leaf->kind == NUMBERED)
        return levels + (4 + PREFIX_BYTES + DIGITS) * rows;
    if (leaf->kind == REPEATED) {
        int64_t longest = 0;
        for (int64_t at = 0; at < leaf->counts_bytes / 8; at++)
            if (end_at(leaf, at + 1) - end_at(leaf, at) > longest)
                longest = end_at(leaf, at + 1) - end_at(leaf, at);
        return levels + (4 + longest) * rows;
    }
    return levels + 4 * rows + end_at(leaf, rows) - end_at(leaf, 0);
}

/* The least and the greatest number of a column of 64 bits without nulls, whose buffers hold them. */
static void find_bounds(const struct leaf *leaf, int64_t rows, int64_t *least, int64_t *greatest)
{
    const uint8_t *values = leaf->values + 8 * (leaf->kind == COLUMN ? leaf->start : 0);
    int64_t count = leaf->kind == COLUMN ? rows : leaf->counts_bytes / 8, number;
    *least = INT64_MAX;
    *greatest = INT64_MIN;
    for (int64_t at = 0; at < count; at++) {
        memcpy(&number, values + 8 * at, sizeof number);
        *least = number < *least ? number : *least;
        *greatest = number > *greatest ? number : *greatest;
    }
}

/* Write the page of a column with values; return its end. Its checksum goes into its header and into that of the file. */
static uint8_t *put_page(
    uint8_t *to, const struct leaf *leaf, int64_t rows, const struct file *file, uint8_t *scratch, uint32_t *crc)
{
    uint8_t *end = scratch;
    if (leaf->has_levels)
        end = put_levels(end, leaf, rows);
    end = leaf->width ? put_numbers(end, leaf, rows) : put_texts(end, leaf, rows);
    size_t size = (size_t)(end - scratch);
    uint32_t body = checksum(0, scratch, size);
    uint8_t *begin = to;
    to = put(to, "\x15\0\x15", 3);
    to = put_zigzag(to, (int64_t)size);
    *to++ = 0x15;
    to = put_zigzag(to, (int64_t)size);
    *to++ = 0x15;
    to = put_zigzag(to, (int32_t)body);
    to = put(to, file->page_end, (size_t)file->page_end_bytes);
    *crc = joined(checksum(*crc, begin, (size_t)(to - begin)), body, size);
    return put(to, scratch, size);
}

/* Write a file of `rows` rows to `out`, which has `room` bytes; `scratch` has as many. Return its bytes; -1 if the pages
   end behind `pages_end_max`, -2 if there is no room, -3 if a column names what it does not have. `found` gets where the
   footer begins, the checksums of what lies before it and of the footer, and the least and the greatest value of leaf
   `timed`, if that is not negative: it has 64 bits and no nulls. */
int64_t deltamq_small_parquet(
    const struct file *file,
    const struct leaf *leaves,
    int64_t count,
    int64_t rows,
    int64_t timed,
    uint8_t *out,
    uint8_t *scratch,
    int64_t room,
    int64_t *found)
{
    int64_t footer_max = file->schema_bytes + file->tail_bytes + 128;
    for (int64_t i = 0; i < count; i++)
        footer_max += leaves[i].chunk_start_bytes + CHUNK_BYTES_MAX;
    int64_t pages_room = room - footer_max - PAGE_HEAD_BYTES_MAX - file->page_end_bytes;
    /* what each column adds to the footer: where its page begins, and its bytes */
    int64_t places[64][2];
    if (count > 64 || pages_room < 4)
        return -2;
    uint8_t *to = put(out, "PAR1", 4);
    uint32_t crc = checksum(0, out, 4);
    for (int64_t i = 0; i < count; i++) {
        const struct leaf *leaf = leaves + i;
        uint8_t *begin = to;
        if (leaf->kind != NULLS) {
            if (!is_whole(leaf, rows))
                return -3;
            if (page_bytes_max(leaf, rows) > pages_room - (to - out))
                return -2;
            to = put_page(to, leaf, rows, file, scratch, &crc);
        } else {
            if (leaf->null_page_bytes > pages_room - (to - out))
                return -2;
            to = put(to, leaf->null_page, (size_t)leaf->null_page_bytes);
            crc = checksum(crc, begin, (size_t)leaf->null_page_bytes);
        }
        places[i][0] = begin - out;
        places[i][1] = to - begin;
        if (to - out > file->pages_end_max)
            return -1;
    }
    uint8_t *footer = to;
    to = put(to, file->schema, (size_t)file->schema_bytes);
    *to++ = 0x16;
    to = put_zigzag(to, rows);
    to = put(to, "\x19\x1c\x19\xfc", 4);
    to = put_varint(to, (uint64_t)count);
    for (int64_t i = 0; i < count; i++) {
        to = put(to, leaves[i].chunk_start, (size_t)leaves[i].chunk_start_bytes);
        to = put_zigzag(to, places[i][1]);
        *to++ = 0x16;
        to = put_zigzag(to, places[i][1]);
        *to++ = 0x26;
        to = put_zigzag(to, places[i][0]);
        to = put(to, "\0\0", 2);
    }
    int64_t pages = footer - out - 4;
    *to++ = 0x16;
    to = put_zigzag(to, pages);
    *to++ = 0x16;
    to = put_zigzag(to, rows);
    *to++ = 0x26;
    to = put_zigzag(to, 4);
    *to++ = 0x16;
    to = put_zigzag(to, pages);
    *to++ = 0;
    to = put(to, file->tail, (size_t)file->tail_bytes);
    to = put_int32(to, (int32_t)(to - footer));
    to = put(to, "PAR1", 4);
    found[0] = footer - out;
    found[1] = crc;
    found[2] = checksum(0, footer, (size_t)(to - footer));
    if (timed >= 0 && timed < count && leaves[timed].width == 8 && !leaves[timed].valid &&
        (leaves[timed].kind == COLUMN || leaves[timed].kind == REPEATED))
        find_bounds(leaves + timed, rows, &found[3], &found[4]);
    return to - out;
}
