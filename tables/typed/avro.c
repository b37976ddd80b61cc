/* Avro's encoding as Arrow's columns in one pass: what avro/value.py does body by body, with the same values and reasons.
   `make setup` compiles this file if the machine has a C compiler. */

#define DECODE deltamq_avro
#include "columns.h"

/* The forms of avro/schema.py. */
enum form { BOOLEAN, WHOLE, FLOAT, DOUBLE, BYTES, STRING, FIXED, ENUM, DECIMAL, UINT32, RECORD, UNION, ARRAY, MAP };
enum { VARINT_BYTES_MAX = 10, DECIMAL_BYTES_MAX = 16, KEYS_COMPARED_MAX = 128 };

static int decode(struct run *run, int64_t at);

static int read_long(struct run *run, int64_t *value)
{
    uint64_t bits = 0;
    for (int n = 0; n < VARINT_BYTES_MAX; n++) {
        if (run->at == run->end)
            return TRUNCATED;
        uint8_t byte = *run->at++;
        if (n == VARINT_BYTES_MAX - 1 && byte > 1)
            break;
        bits |= (uint64_t)(byte & 0x7F) << 7 * n;
        if (byte < 0x80) {
            *value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
            return FITS;
        }
    }
    return LONG_NUMBER;
}

static int read_bytes(struct run *run, int64_t fixed, const uint8_t **bytes, int64_t *size)
{
    *size = fixed;
    if (!fixed) {
        int reason = read_long(run, size);
        if (reason)
            return reason;
        if (*size < 0)
            return LENGTH;
    }
    if (*size > run->end - run->at)
        return TRUNCATED;
    *bytes = run->at;
    run->at += *size;
    return FITS;
}

static int decode_whole(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    int64_t value;
    int reason = read_long(run, &value);
    if (reason)
        return reason;
    if (__builtin_mul_overflow(value, node->unit, &value) || value < node->low || value > node->high)
        return RANGE;
    return put_number(run, at, value);
}

static int decode_real(struct run *run, int64_t at, int64_t size)
{
    const uint8_t *bytes;
    int64_t bits;
    int reason = read_bytes(run, size, &bytes, &size);
    if (reason)
        return reason;
    if (size == sizeof(float)) {
        float narrow;
        memcpy(&narrow, bytes, sizeof narrow);
        double value = (double)narrow;
        memcpy(&bits, &value, sizeof bits);
    } else {
        memcpy(&bits, bytes, sizeof bits);
    }
    return put_number(run, at, bits);
}

static int decode_text(struct run *run, int64_t at, int64_t fixed, int is_string)
{
    const uint8_t *bytes;
    int64_t size;
    int reason = read_bytes(run, fixed, &bytes, &size);
    if (reason)
        return reason;
    return is_string && !is_text(bytes, size) ? NOT_UTF8 : put_text(run, at, bytes, size);
}

static int decode_enum(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    int64_t number;
    int reason = read_long(run, &number);
    if (reason)
        return reason;
    if (number < 0 || number >= node->texts)
        return SYMBOL;
    int32_t start = end_of(run->text_ends, node->text + number);
    return put_text(run, at, run->texts + start, end_of(run->text_ends, node->text + number + 1) - start);
}

static int decode_decimal(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    const uint8_t *bytes;
    int64_t size;
    int reason = read_bytes(run, node->size, &bytes, &size);
    if (reason)
        return reason;
    if (!size)
        return NO_DIGITS;
    if (size > DECIMAL_BYTES_MAX)
        return ASK;
    unsigned __int128 bits = bytes[0] & 0x80 ? ~(unsigned __int128)0 : 0;
    for (int64_t n = 0; n < size; n++)
        bits = bits << 8 | bytes[n];
    __int128 value = (__int128)bits, bound = 1;
    for (int64_t digit = 0; digit < node->scale; digit++)
        bound *= 10;
    return value <= -bound || value >= bound ? RANGE : put_wide(run, at, value);
}

static int decode_record(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    for (int64_t child = node->first; child < node->first + node->count; child++) {
        int reason = decode(run, child);
        if (reason)
            return reason;
    }
    return put_struct(run, at);
}

static int decode_union(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    int64_t number;
    int reason = read_long(run, &number);
    if (reason)
        return reason;
    if (number == node->size)
        return put_null(run, at);
    number -= node->size >= 0 && node->size < number;
    if (number < 0 || number >= node->count)
        return BRANCH;
    for (int64_t child = 0; child < node->count; child++) {
        reason = child == number ? decode(run, node->first + child) : put_null(run, node->first + child);
        if (reason)
            return reason;
    }
    return put_struct(run, at);
}

/* A map's entry; a key that repeats one of many is the twin's to find. */
static int decode_entry(struct run *run, int64_t entry, int64_t first)
{
    int64_t key = run->nodes[entry].first;
    const struct column *keys = run->columns + key;
    int reason = decode_text(run, key, 0, 1);
    if (reason)
        return at_node(run, entry, reason);
    int64_t last = keys->count - 1;
    const int32_t *ends = ends_in(keys);
    if (last - first > KEYS_COMPARED_MAX)
        return ASK;
    for (int64_t other = first; other < last; other++)
        if (ends[other + 1] - ends[other] == ends[last + 1] - ends[last] &&
            !memcmp(keys->data + ends[other], keys->data + ends[last], (size_t)(ends[last + 1] - ends[last])))
            return ASK;
    reason = decode(run, key + 1);
    return reason ? in_element(run, -1, reason) : put_struct(run, entry);
}

static int decode_blocks(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    int64_t first = run->columns[node->first].count;
    for (;;) {
        int64_t count, size;
        int reason = read_long(run, &count);
        if (reason)
            return reason;
        if (!count)
            return put_list(run, at);
        if (count < 0) {
            reason = read_long(run, &size);
            if (reason)
                return reason;
            if (size < 0)
                return LENGTH;
        }
        /* the lowest number has no positive one */
        count = count == INT64_MIN ? INT64_MAX : count < 0 ? -count : count;
        if (count > run->end - run->at)
            return TRUNCATED;
        reason = take_cells(run, at, count);
        if (reason)
            return reason;
        for (int64_t n = 0; n < count; n++) {
            if (node->form == MAP) {
                reason = decode_entry(run, node->first, first);
                if (reason)
                    return reason;
                continue;
            }
            reason = decode(run, node->first);
            if (reason)
                return in_element(run, run->columns[node->first].count - first, reason);
        }
    }
}

static int decode_form(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    switch (node->form) {
    case BOOLEAN:
        if (run->at == run->end)
            return TRUNCATED;
        return *run->at > 1 ? NOT_BOOLEAN : put_bit(run, at, *run->at++);
    case WHOLE:
        return decode_whole(run, at);
    case FLOAT:
        return decode_real(run, at, sizeof(float));
    case DOUBLE:
        return decode_real(run, at, sizeof(double));
    case BYTES:
        return decode_text(run, at, 0, 0);
    case STRING:
        return decode_text(run, at, 0, 1);
    case FIXED:
        return decode_text(run, at, node->size, 0);
    case ENUM:
        return decode_enum(run, at);
    case DECIMAL:
        return decode_decimal(run, at);
    case RECORD:
        return decode_record(run, at);
    case UNION:
        return decode_union(run, at);
    case ARRAY:
    case MAP:
        return decode_blocks(run, at);
    case UINT32: {
        const uint8_t *bytes;
        int64_t size;
        uint32_t value;
        int reason = read_bytes(run, sizeof value, &bytes, &size);
        if (reason)
            return reason;
        memcpy(&value, bytes, sizeof value);
        return put_number(run, at, value);
    }
    default:
        return ASK;
    }
}

static int decode(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    int64_t number;
    int reason = FITS;
    if (node->null != NO_UNION) {
        reason = read_long(run, &number);
        if (!reason && number == node->null)
            return put_null(run, at);
        if (!reason && number != (node->null >= 0 ? 1 - node->null : 0))
            reason = BRANCH;
    }
    if (!reason)
        reason = decode_form(run, at);
    /* what is within has named itself */
    return named(run, at, reason);
}

static int decode_body(struct run *run)
{
    int reason = decode(run, 0);
    return !reason && run->at < run->end ? at_node(run, 0, TRAILING) : reason;
}
