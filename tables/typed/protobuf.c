/* Protobuf's encoding as Arrow's columns in one pass: what protobuf/value.py does body by body, with the same values and
   reasons. Fields that a message has twice, which no serializer writes, are left to it. `make setup` compiles this file if
   the machine has a C compiler. */

#define DECODE deltamq_protobuf
#include "columns.h"

/* The forms of protobuf/schema.py. */
enum form { BOOLEAN, VARINT, ZIGZAG, FIXED, FLOAT, DOUBLE, BYTES, STRING, ENUM, TIMESTAMP, MESSAGE, REPEATED_FIELD, MAP };
enum wire { WIRE_VARINT, WIRE_EIGHT, WIRE_BYTES, WIRE_GROUP, WIRE_END_GROUP, WIRE_FOUR };
enum { VARINT_BYTES_MAX = 10, GROUPS_MAX = 100, FIELDS_MAX = 1024, KEYS_COMPARED_MAX = 128, DIGITS_MAX = 20 };
static const int64_t FIELD_NUMBER_END = (int64_t)1 << 29, SECOND_US = 1000000, NANOS_END = 1000000000;

static int decode_message(struct run *run, int64_t at);

/* Wire ---------------------------------------------------------------------------------------------------------- */

static int read_varint(struct run *run, uint64_t *value)
{
    *value = 0;
    for (int n = 0; n < VARINT_BYTES_MAX; n++) {
        if (run->at == run->end)
            return TRUNCATED;
        uint8_t byte = *run->at++;
        if (n == VARINT_BYTES_MAX - 1 && byte > 1)
            break;
        *value |= (uint64_t)(byte & 0x7F) << 7 * n;
        if (byte < 0x80)
            return FITS;
    }
    return LONG_NUMBER;
}

struct value {
    uint64_t bits;        /* of a number, or the bytes of the others */
    const uint8_t *bytes; /* NULL: a number */
};

static int read_tag(struct run *run, int64_t *number, int *wire)
{
    uint64_t tag;
    int reason = read_varint(run, &tag);
    if (reason)
        return reason;
    *wire = (int)(tag & 7);
    *number = (int64_t)(tag >> 3);
    return *number && *number < FIELD_NUMBER_END ? FITS : NO_TAG;
}

static int read_value(struct run *run, int64_t number, int wire, int depth, struct value *value)
{
    int reason = FITS;
    value->bytes = NULL;
    if (wire == WIRE_VARINT)
        return read_varint(run, &value->bits);
    if (wire == WIRE_GROUP && depth < GROUPS_MAX) {
        for (;;) {
            int64_t inner;
            reason = read_tag(run, &inner, &wire);
            if (reason || (wire == WIRE_END_GROUP && inner == number))
                return reason;
            reason = read_value(run, inner, wire, depth + 1, value);
            if (reason)
                return reason;
        }
    }
    value->bits = wire == WIRE_EIGHT ? 8 : 4;
    if (wire == WIRE_BYTES)
        reason = read_varint(run, &value->bits);
    else if (wire != WIRE_EIGHT && wire != WIRE_FOUR)
        return NO_TAG;
    if (reason)
        return reason;
    if (value->bits > (uint64_t)(run->end - run->at))
        return TRUNCATED;
    value->bytes = run->at;
    run->at += value->bits;
    if (wire != WIRE_BYTES) {
        uint64_t bits = 0;
        memcpy(&bits, value->bytes, (size_t)value->bits);
        *value = (struct value){bits, NULL};
    }
    return FITS;
}

/* Values -------------------------------------------------------------------------------------------------------- */

static int put_whole(struct run *run, int64_t at, uint64_t bits)
{
    const struct node *node = run->nodes + at;
    if (node->layout == 16)
        return put_wide(run, at, (__int128)bits);
    int64_t value = (int64_t)bits;
    if (node->form == ZIGZAG)
        value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
    if (node->form == FIXED && node->size == 4)
        value = node->low < 0 ? (int32_t)(uint32_t)bits : (int64_t)(uint32_t)bits;
    return value < node->low || value > node->high ? RANGE : put_number(run, at, value);
}

/* The text of a number, right-aligned in `DIGITS_MAX` + 1 bytes. */
static const uint8_t *text_of(int64_t value, uint8_t *end)
{
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do
        *--end = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        *--end = '-';
    return end;
}

static int put_enum(struct run *run, int64_t at, uint64_t bits)
{
    const struct node *node = run->nodes + at;
    int64_t number = (int64_t)bits;
    uint8_t digits[DIGITS_MAX + 1], *end = digits + sizeof digits;
    if (number < INT32_MIN || number > INT32_MAX)
        return RANGE;
    /* the numbers lie behind the nodes */
    const int64_t *numbers = (const int64_t *)(const void *)(run->nodes + run->node_count) + node->scale;
    for (int64_t n = 0; n < node->texts; n++)
        if (numbers[n] == number) {
            int32_t start = end_of(run->text_ends, node->text + n);
            return put_text(run, at, run->texts + start, end_of(run->text_ends, node->text + n + 1) - start);
        }
    const uint8_t *text = text_of(number, end);
    return put_text(run, at, text, end - text);
}

static int put_real(struct run *run, int64_t at, uint64_t bits)
{
    int64_t stored = (int64_t)bits;
    if (run->nodes[at].form == FLOAT) {
        float narrow;
        memcpy(&narrow, &bits, sizeof narrow);
        double value = (double)narrow;
        memcpy(&stored, &value, sizeof stored);
    }
    return put_number(run, at, stored);
}

static int put_scalar(struct run *run, int64_t at, const struct value *value)
{
    switch (run->nodes[at].form) {
    case BOOLEAN:
        return value->bits > 1 ? NOT_BOOLEAN : put_bit(run, at, (int)value->bits);
    case FLOAT:
    case DOUBLE:
        return put_real(run, at, value->bits);
    case ENUM:
        return put_enum(run, at, value->bits);
    case STRING:
        if (!is_text(value->bytes, (int64_t)value->bits))
            return NOT_UTF8;
        /* fall through */
    case BYTES:
        return put_text(run, at, value->bytes, (int64_t)value->bits);
    default:
        return put_whole(run, at, value->bits);
    }
}

static int put_default(struct run *run, int64_t at)
{
    static const uint8_t nothing[1];
    struct value value = {0, run->nodes[at].form == STRING || run->nodes[at].form == BYTES ? nothing : NULL};
    return put_scalar(run, at, &value);
}

static int scalar_wire(const struct node *node)
{
    if (node->form == FIXED || node->form == FLOAT || node->form == DOUBLE)
        return node->form == DOUBLE || (node->form == FIXED && node->size == 8) ? WIRE_EIGHT : WIRE_FOUR;
    return node->form == BYTES || node->form == STRING || node->form >= TIMESTAMP ? WIRE_BYTES : WIRE_VARINT;
}

static int wire_of(const struct node *node)
{
    return node->flags & WRAPPED ? WIRE_BYTES : scalar_wire(node);
}

static int decode_timestamp(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    int64_t parts[3] = {0, 0, 0}, number;
    int wire, seen = 0;
    while (run->at < run->end) {
        struct value value;
        int reason = read_tag(run, &number, &wire);
        if (!reason)
            reason = read_value(run, number, wire, 0, &value);
        if (reason)
            return reason;
        if (number > 2 || wire != WIRE_VARINT)
            continue;
        if (seen >> number & 1)
            return ASK;
        seen |= 1 << number;
        parts[number] = (int64_t)value.bits;
    }
    int64_t us, nanos = parts[2];
    if (nanos < 0 || nanos >= NANOS_END || nanos % 1000 || __builtin_mul_overflow(parts[1], SECOND_US, &us) ||
        __builtin_add_overflow(us, nanos / 1000, &us) || us < node->low || us > node->high)
        return RANGE;
    return put_number(run, at, us);
}

/* The scalar in one of google.protobuf's wrappers. */
static int decode_wrapper(struct run *run, int64_t at)
{
    struct value value, inner;
    int is_there = 0, wire;
    int64_t number;
    while (run->at < run->end) {
        int reason = read_tag(run, &number, &wire);
        if (!reason)
            reason = read_value(run, number, wire, 0, &inner);
        if (reason)
            return reason;
        if (number != 1 || wire != scalar_wire(run->nodes + at))
            continue;
        if (is_there)
            return ASK;
        is_there = 1;
        value = inner;
    }
    return is_there ? put_scalar(run, at, &value) : put_default(run, at);
}

/* A value whose bytes are read, of any form but lists and maps. */
static int put_value(struct run *run, int64_t at, const struct value *value)
{
    const struct node *node = run->nodes + at;
    if (node->form != MESSAGE && node->form != TIMESTAMP && !(node->flags & WRAPPED))
        return put_scalar(run, at, value);
    const uint8_t *resume = run->at, *end = run->end;
    run->at = value->bytes;
    run->end = value->bytes + value->bits;
    int reason = node->form == MESSAGE        ? decode_message(run, at)
                 : node->form == TIMESTAMP ? decode_timestamp(run, at)
                                              : decode_wrapper(run, at);
    run->at = resume;
    run->end = end;
    return reason;
}

static int put_element(struct run *run, int64_t at, const struct value *value)
{
    int64_t item = run->nodes[at].first;
    const struct column *column = run->columns + at;
    int64_t place = run->columns[item].count - ends_in(column)[column->count];
    int reason = take_cells(run, at, 1);
    if (reason)
        return reason;
    reason = named(run, item, put_value(run, item, value));
    return reason ? in_element(run, place, reason) : FITS;
}

static int put_packed(struct run *run, int64_t at, const struct value *packed)
{
    const uint8_t *resume = run->at, *end = run->end;
    int reason = FITS, wire = wire_of(run->nodes + run->nodes[at].first);
    run->at = packed->bytes;
    run->end = packed->bytes + packed->bits;
    while (!reason && run->at < run->end) {
        struct value value;
        reason = read_value(run, 0, wire, 0, &value);
        if (!reason)
            reason = put_element(run, at, &value);
    }
    run->at = resume;
    run->end = end;
    return reason;
}

/* A key's text; numbers of few types have one here. */
static int put_key(struct run *run, int64_t at, const struct value *value)
{
    const struct node *node = run->nodes + at;
    uint8_t digits[DIGITS_MAX + 1], *end = digits + sizeof digits;
    int64_t number = (int64_t)value->bits;
    if (node->form == STRING)
        return put_scalar(run, at, value);
    if (node->form != VARINT || node->size)
        return ASK;
    if (number < node->low || number > node->high)
        return RANGE;
    const uint8_t *text = text_of(number, end);
    return put_text(run, at, text, end - text);
}

static int put_entry(struct run *run, int64_t at, const struct value *pair)
{
    int64_t entry = run->nodes[at].first, key = run->nodes[entry].first, number;
    const struct column *keys = run->columns + key;
    const uint8_t *resume = run->at, *end = run->end;
    struct value values[2] = {{0, (const uint8_t *)""}, {0, (const uint8_t *)""}}, value;
    int seen = 0, wire, reason = take_cells(run, at, 1);
    if (reason)
        return reason;
    run->at = pair->bytes;
    run->end = pair->bytes + pair->bits;
    while (!reason && run->at < run->end) {
        reason = read_tag(run, &number, &wire);
        if (!reason)
            reason = read_value(run, number, wire, 0, &value);
        if (reason || number > 2)
            continue;
        if (seen >> number & 1 || wire != wire_of(run->nodes + key + number - 1))
            reason = ASK;
        seen |= 1 << number;
        values[number - 1] = value;
    }
    run->at = resume;
    run->end = end;
    if (reason)
        return reason;
    /* serializers write both, and no key twice */
    if (seen != 6)
        return ASK;
    reason = put_key(run, key, &values[0]);
    if (reason)
        return reason;
    int64_t last = keys->count - 1, first = ends_in(run->columns + at)[run->columns[at].count];
    const int32_t *ends = ends_in(keys);
    if (last - first > KEYS_COMPARED_MAX)
        return ASK;
    for (int64_t other = first; other < last; other++)
        if (ends[other + 1] - ends[other] == ends[last + 1] - ends[last] &&
            !memcmp(keys->data + ends[other], keys->data + ends[last], (size_t)(ends[last + 1] - ends[last])))
            return ASK;
    reason = named(run, key + 1, put_value(run, key + 1, &values[1]));
    return reason ? in_element(run, -1, reason) : put_struct(run, entry);
}

/* Messages ------------------------------------------------------------------------------------------------------- */

static int64_t child_of(const struct run *run, const struct node *node, int64_t hint, int64_t number)
{
    for (int64_t n = 0; n < node->count; n++) {
        int64_t child = hint + n < node->count ? hint + n : hint + n - node->count;
        if (run->nodes[node->first + child].number == number)
            return child;
    }
    return -1;
}

static int is_seen(const uint64_t *seen, int64_t child)
{
    return (int)(seen[child >> 6] >> (child & 63) & 1);
}

static int put_field(struct run *run, int64_t message, uint64_t *seen, int64_t child, int wire,
                     const struct value *value)
{
    const struct node *node = run->nodes + message;
    int64_t at = node->first + child;
    const struct node *field = run->nodes + at;
    if (field->form == REPEATED_FIELD) {
        if (wire == wire_of(run->nodes + field->first))
            return put_element(run, at, value);
        return wire == WIRE_BYTES ? put_packed(run, at, value) : FITS;
    }
    if (wire != wire_of(field))
        return FITS;
    if (field->form == MAP)
        return put_entry(run, at, value);
    if (is_seen(seen, child))
        return ASK;
    for (int64_t other = 0; field->group && other < node->count; other++)
        if (run->nodes[node->first + other].group == field->group && is_seen(seen, other))
            return ASK;
    seen[child >> 6] |= (uint64_t)1 << (child & 63);
    return put_value(run, at, value);
}

static int end_field(struct run *run, int64_t at)
{
    const struct node *field = run->nodes + at;
    if (field->form == REPEATED_FIELD || field->form == MAP)
        return put_list(run, at);
    if (field->flags & REQUIRED)
        return MISSING;
    return field->flags & NULLABLE ? put_null(run, at) : put_default(run, at);
}

static int decode_message(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    uint64_t seen[FIELDS_MAX / 64];
    int64_t next = 0, number;
    int wire;
    memset(seen, 0, (size_t)(node->count + 63) / 64 * 8);
    while (run->at < run->end) {
        struct value value;
        int reason = read_tag(run, &number, &wire);
        if (!reason)
            reason = read_value(run, number, wire, 0, &value);
        if (reason)
            return reason;
        int64_t child = child_of(run, node, next, number);
        if (child < 0)
            continue;
        next = child;
        reason = named(run, node->first + child, put_field(run, at, seen, child, wire, &value));
        if (reason)
            return reason;
    }
    for (int64_t child = 0; child < node->count; child++) {
        int reason = is_seen(seen, child) ? FITS : named(run, node->first + child, end_field(run, node->first + child));
        if (reason)
            return reason;
    }
    return put_struct(run, at);
}

static int decode_body(struct run *run)
{
    return named(run, 0, decode_message(run, 0));
}
