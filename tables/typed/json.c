/* JSON as Arrow's columns in one pass: what json/value.py does body by body, with the same values and reasons. What is
   rare and long to judge (numbers with many digits, names that come twice) is left to it. `make setup` compiles this
   file if the machine has a C compiler. */

#include <stdio.h>

#define DECODE deltamq_json
#include "json_syntax.h"

/* The forms of node.py. */
enum form { BOOLEAN, WHOLE, REAL, DECIMAL, STRING, BASE64, DATE, TIMESTAMP, ANY, OBJECT, ARRAY, MAP };
enum { FIELDS_MAX = 1024, NAME_BYTES_MAX = 256, MANTISSA_DIGITS = 19 };
enum { NUMBER_BYTES_MAX = 39, DOUBLE_DIGITS = 15, FLOAT_DIGITS = 6, DOUBLE_DIGITS_MAX = 17, POWER_MAX = 22 };
static const int64_t DAY_US = 86400000000;

static int decode(struct run *run, int64_t at);

static int sextet(uint8_t sign)
{
    if (sign >= 'A' && sign <= 'Z')
        return sign - 'A';
    if (sign >= 'a' && sign <= 'z')
        return sign - 'a' + 26;
    if (sign >= '0' && sign <= '9')
        return sign - '0' + 52;
    return sign == '+' ? 62 : sign == '/' ? 63 : -1;
}

static int put_base64(struct run *run, int64_t at, const uint8_t *text, int64_t bytes)
{
    struct column *column = run->columns + at;
    uint8_t *room = begin(run, at) ? NULL : text_room(column, bytes), *to = room;
    if (!room)
        return NO_MEMORY;
    if (bytes % 4)
        return NOT_BASE64;
    for (int64_t n = 0; n < bytes; n += 4) {
        const uint8_t *four = text + n;
        int is_last = n + 4 == bytes, pads = is_last ? (four[3] == '=') + (four[3] == '=' && four[2] == '=') : 0;
        int32_t bits = 0;
        for (int sign = 0; sign < 4; sign++) {
            int value = sign >= 4 - pads ? 0 : sextet(four[sign]);
            if (value < 0)
                return NOT_BASE64;
            bits = bits << 6 | value;
        }
        /* bits behind the last byte would be lost */
        if (bits & ((1 << 8 * pads) - 1))
            return NOT_BASE64;
        for (int byte = 0; byte < 3 - pads; byte++)
            *to++ = (uint8_t)(bits >> (16 - 8 * byte));
    }
    return end_text(column, to - room);
}

/* Numbers ------------------------------------------------------------------------------------------------------ */

/* Take zeros off the end, until the last digit has the power `lowest`; a number that is zero has it. */
static struct number without_zeros(const struct number *number, int64_t lowest)
{
    struct number same = *number;
    while (same.digits && same.exponent < lowest && same.mantissa % 10 == 0) {
        same.mantissa /= 10;
        same.exponent++;
        same.digits--;
    }
    if (!same.digits)
        same.exponent = lowest;
    return same;
}

static int put_whole(struct run *run, int64_t at, const struct number *number)
{
    const struct node *node = run->nodes + at;
    if (number->digits > MANTISSA_DIGITS || number->is_far)
        return number->is_plain && !number->has_point ? RANGE : ASK;
    struct number whole = without_zeros(number, 0);
    int64_t first = whole.digits + whole.exponent - 1;
    if (whole.exponent < 0)
        return first < 8 * node->layout ? NOT_WHOLE : RANGE;
    if (first >= MANTISSA_DIGITS)
        return RANGE;
    for (; whole.exponent > 0; whole.exponent--)
        whole.mantissa *= 10;
    if (whole.mantissa > (uint64_t)node->high + (uint64_t)whole.is_negative)
        return RANGE;
    return put_number(run, at, (int64_t)(whole.is_negative ? -whole.mantissa : whole.mantissa));
}

/* Whether `value`, rounded to the digits that were sent, is what was sent. */
static int gives_again(double value, const struct number *number)
{
    char printed[48], sent[32];
    int digits = 0;
    if (number->digits > DOUBLE_DIGITS_MAX || !number->digits)
        return 0;
    snprintf(sent, sizeof sent, "%llu", (unsigned long long)number->mantissa);
    int length = snprintf(printed, sizeof printed, "%.*e", (int)number->digits - 1, value < 0 ? -value : value);
    for (int n = 0; n < length && printed[n] != 'e'; n++)
        if (printed[n] >= '0' && printed[n] <= '9' && printed[n] != sent[digits++])
            return 0;
    const char *exponent = strchr(printed, 'e');
    return digits == number->digits && exponent &&
           strtoll(exponent + 1, NULL, 10) == number->exponent + number->digits - 1;
}

static int put_real(struct run *run, int64_t at, const struct number *number)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    int is_double = run->nodes[at].layout == sizeof(double);
    double value;
    int64_t bits = 0;
    if (number->digits <= DOUBLE_DIGITS && number->exponent >= -POWER_MAX && number->exponent <= POWER_MAX) {
        value = (double)number->mantissa;
        value = number->exponent < 0 ? value / powers[-number->exponent] : value * powers[number->exponent];
        value = number->is_negative ? -value : value;
    } else {
        char text[NUMBER_BYTES_MAX + 1], *end;
        if (number->bytes > NUMBER_BYTES_MAX)
            return ASK;
        memcpy(text, number->text, (size_t)number->bytes);
        text[number->bytes] = 0;
        /* where the locale has another point, it ends too early */
        value = strtod(text, &end);
        if (end != text + number->bytes || value - value != 0 || (is_double && !gives_again(value, number)))
            return ASK;
    }
    if (is_double) {
        memcpy(&bits, &value, sizeof value);
        return put_number(run, at, bits);
    }
    float narrow = (float)value, size = narrow < 0 ? -narrow : narrow;
    int is_short = number->digits <= FLOAT_DIGITS && size >= 1.2e-38f && size <= 3.4e38f;
    if (narrow - narrow != 0 || (number->digits && !is_short && !gives_again((double)narrow, number)))
        return ASK;
    memcpy(&bits, &narrow, sizeof narrow);
    return put_number(run, at, bits);
}

static int put_decimal(struct run *run, int64_t at, const struct number *number)
{
    const struct node *node = run->nodes + at;
    if (number->digits > MANTISSA_DIGITS || number->is_far)
        return ASK;
    struct number exact = without_zeros(number, -node->scale);
    int64_t zeros = node->scale + exact.exponent;
    if (zeros < 0 || (exact.digits && exact.digits + zeros > node->size))
        return RANGE;
    __int128 value = (__int128)exact.mantissa;
    for (int64_t n = 0; exact.digits && n < zeros; n++)
        value *= 10;
    return put_wide(run, at, exact.is_negative ? -value : value);
}

/* Days and times ------------------------------------------------------------------------------------------------- */

/* The number of `count` digits, or -1. */
static int64_t digits_at(const uint8_t *at, int count)
{
    int64_t value = 0;
    for (int n = 0; n < count; n++) {
        if (at[n] < '0' || at[n] > '9')
            return -1;
        value = 10 * value + (at[n] - '0');
    }
    return value;
}

/* The days from 1970 on of YYYY-MM-DD; NOT_DATE, or RANGE: there is no such day. */
static int days_of(const uint8_t *at, int64_t *days)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t year = digits_at(at, 4), month = digits_at(at + 5, 2), day = digits_at(at + 8, 2);
    if (year < 0 || month < 0 || day < 0 || at[4] != '-' || at[7] != '-')
        return NOT_DATE;
    int is_leap = year % 4 == 0 && (year % 100 || year % 400 == 0);
    if (!year || !month || month > 12 || !day || day > lengths[month - 1] + (month == 2 && is_leap))
        return RANGE;
    int64_t past = year - 1;
    *days = 365 * past + past / 4 - past / 100 + past / 400 + before[month - 1] + (month > 2 && is_leap) + day - 719163;
    return FITS;
}

static int put_timestamp(struct run *run, int64_t at, const uint8_t *text, int64_t bytes)
{
    const struct node *node = run->nodes + at;
    const uint8_t *end = text + bytes, *zone = text + 19;
    int is_local = node->size == 1, no_time = is_local ? NOT_LOCAL : NOT_TIMESTAMP;
    int64_t days, us = 0, east = 0, unit = DAY_US / 86400, is_fine = 1;
    if (bytes < 20 - is_local || (text[10] != 'T' && text[10] != 't' && text[10] != ' ') || text[13] != ':' || text[16] != ':')
        return no_time;
    int64_t hour = digits_at(text + 11, 2), minute = digits_at(text + 14, 2), second = digits_at(text + 17, 2);
    int reason = days_of(text, &days);
    if (reason == NOT_DATE || hour < 0 || minute < 0 || second < 0)
        return no_time;
    if (zone < end && *zone == '.') {
        const uint8_t *start = ++zone;
        for (; zone < end && *zone >= '0' && *zone <= '9'; zone++) {
            unit /= 10;
            us += unit * (*zone - '0');
            is_fine &= unit || *zone == '0';
        }
        if (zone == start)
            return no_time;
    }
    if (is_local) {
        if (zone != end)
            return no_time;
    } else if (end - zone == 6 && (*zone == '+' || *zone == '-') && zone[3] == ':') {
        int64_t hours = digits_at(zone + 1, 2), minutes = digits_at(zone + 4, 2);
        if (hours < 0 || minutes < 0)
            return no_time;
        is_fine &= hours < 24 && minutes < 60;
        east = (*zone == '+' ? 60 : -60) * (60 * hours + minutes);
    } else if (end - zone != 1 || (*zone != 'Z' && *zone != 'z')) {
        return no_time;
    }
    if (reason || hour > 23 || minute > 59 || second > 59 || !is_fine)
        return RANGE;
    us += days * DAY_US + (3600 * hour + 60 * minute + second - east) * (DAY_US / 86400);
    return us < node->low || us > node->high ? RANGE : put_number(run, at, us);
}

/* Values --------------------------------------------------------------------------------------------------------- */

static int decode_number(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    struct number number;
    struct run text = {.begin = NULL};
    const uint8_t *bytes;
    int64_t size;
    int escapes, reason, is_quoted = node->form == DECIMAL && *run->at == '"';
    if (is_quoted) {
        reason = read_raw(run, &bytes, &size, &escapes);
        text.at = bytes;
        text.end = bytes + size;
        if (reason || escapes || !size)
            return reason ? reason : escapes ? ASK : NOT_DECIMAL;
        reason = read_number(&text, &number);
        if (reason || text.at != text.end)
            return NOT_DECIMAL;
    } else {
        if (*run->at != '-' && (*run->at < '0' || *run->at > '9'))
            return node->form == DECIMAL                              ? NOT_DECIMAL
                   : node->form == REAL && node->size && *run->at == '"' ? ASK
                                                                         : NOT_NUMBER;
        reason = read_number(run, &number);
        if (reason)
            return reason;
    }
    return node->form == WHOLE     ? put_whole(run, at, &number)
           : node->form == DECIMAL ? put_decimal(run, at, &number)
                                   : put_real(run, at, &number);
}

static int decode_string(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    const uint8_t *text;
    int64_t bytes, days;
    int escapes;
    if (*run->at != '"')
        return node->form == DATE        ? NOT_DATE
               : node->form != TIMESTAMP ? NOT_STRING
               : node->size              ? NOT_LOCAL
                                         : NOT_TIMESTAMP;
    int reason = read_raw(run, &text, &bytes, &escapes);
    if (reason)
        return reason;
    if (node->form == STRING)
        return put_string(run, at, text, bytes, escapes);
    if (escapes)
        return ASK;
    if (node->form == BASE64)
        return put_base64(run, at, text, bytes);
    if (node->form == TIMESTAMP)
        return put_timestamp(run, at, text, bytes);
    reason = bytes == 10 ? days_of(text, &days) : NOT_DATE;
    return reason ? reason : put_number(run, at, days);
}

/* A field's value, or an element's; a fault of a struct's field is the field's. */
static int decode_part(struct run *run, int64_t at)
{
    int reason;
    if (peek(run) == 'n' && take_word(run, "null", 4))
        reason = run->nodes[at].flags & NULLABLE ? put_null(run, at) : IS_NULL;
    else
        reason = decode(run, at);
    return named(run, at, reason);
}

static int64_t child_of(const struct run *run, const struct node *node, int64_t hint, const uint8_t *name, int64_t bytes)
{
    for (int64_t n = 0; n < node->count; n++) {
        int64_t child = hint + n < node->count ? hint + n : hint + n - node->count;
        int32_t start = end_of(run->text_ends, node->text + child);
        if (end_of(run->text_ends, node->text + child + 1) - start == bytes &&
            !memcmp(run->texts + start, name, (size_t)bytes))
            return child;
    }
    return -1;
}

/* In mode `rescue`, keep a field's fault with its value, and make the field null; a second one is the twin's to keep.
   `child` is -1 for a field that the schema does not have. */
static int rescue(struct run *run, int64_t at, int64_t child, const uint8_t *value, int reason)
{
    int64_t row = run->columns[at].count;
    if (!run->rescues || reason <= ASK || reason == NOT_JSON)
        return reason;
    if (run->fault.is_kept || reason == REPEATED || reason == ELEMENTS)
        return ASK;
    for (int64_t up = at; up; up = run->nodes[up].parent) {
        const struct node *list = run->nodes + run->nodes[up].parent;
        const struct column *column = run->columns + run->nodes[up].parent;
        if (list->layout != LIST)
            continue;
        int64_t place = list->form == MAP ? -1 : run->columns[up].count - ends_in(column)[column->count];
        if (in_element(run, place, reason) == ASK)
            return ASK;
    }
    run->fault.is_kept = 1;
    run->fault.reason = reason;
    if (value) {
        run->at = value;
        if (skip(run, 0))
            return NOT_JSON;
        run->fault.value = value - run->begin;
        run->fault.value_bytes = run->at - value;
    }
    if (child < 0)
        return FITS;
    cut(run, child, row);
    return put_null(run, child);
}

/* Nulls for the fields of an object that were not there. */
static int end_object(struct run *run, int64_t at, const uint64_t *seen)
{
    const struct node *node = run->nodes + at;
    for (int64_t child = 0; child < node->count; child++) {
        if (seen[child >> 6] >> (child & 63) & 1)
            continue;
        int reason = FITS;
        if (run->nodes[node->first + child].flags & REQUIRED)
            reason = rescue(run, at, node->first + child, NULL, named(run, node->first + child, MISSING));
        else if (put_null(run, node->first + child))
            return NO_MEMORY;
        if (reason)
            return reason;
    }
    return put_struct(run, at);
}

static int decode_object(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    uint64_t seen[FIELDS_MAX / 64];
    uint8_t plain[NAME_BYTES_MAX];
    int64_t next = 0;
    memset(seen, 0, (size_t)(node->count + 63) / 64 * 8);
    if (take(run, '}'))
        return end_object(run, at, seen);
    do {
        const uint8_t *name;
        int64_t bytes;
        int escapes, reason = peek(run) == '"' ? read_raw(run, &name, &bytes, &escapes) : NOT_JSON;
        if (reason || bytes > NAME_BYTES_MAX)
            return reason ? reason : ASK;
        if (escapes) {
            const uint8_t *end = put_unescaped(plain, name, name + bytes);
            if (!end)
                return ASK;
            name = plain;
            bytes = end - plain;
        }
        if (!take(run, ':'))
            return NOT_JSON;
        int64_t child = child_of(run, node, next, name, bytes);
        if (child < 0) {
            if (node->flags & CLOSED) {
                if (run->fault.is_kept || escapes)
                    return ASK;
                run->fault.name = name - run->begin;
                run->fault.name_bytes = bytes;
                peek(run);
                reason = rescue(run, at, -1, run->at, named(run, at, UNKNOWN_FIELD));
            } else {
                reason = skip(run, 0);
            }
        } else if (seen[child >> 6] >> (child & 63) & 1) {
            return named(run, node->first + child, run->rescues ? ASK : REPEATED);
        } else {
            seen[child >> 6] |= (uint64_t)1 << (child & 63);
            next = child + 1;
            peek(run);
            const uint8_t *value = run->at;
            reason = rescue(run, at, node->first + child, value, decode_part(run, node->first + child));
        }
        if (reason)
            return reason;
    } while (take(run, ','));
    return take(run, '}') ? end_object(run, at, seen) : NOT_JSON;
}

/* A map's entry; a name that repeats one of many is the twin's to find. */
static int decode_entry(struct run *run, int64_t entry, int64_t first)
{
    const uint8_t *name;
    int64_t bytes, key = run->nodes[entry].first;
    const struct column *keys = run->columns + key;
    int escapes, reason = peek(run) == '"' ? read_raw(run, &name, &bytes, &escapes) : NOT_JSON;
    if (reason || escapes || keys->count - first > KEYS_COMPARED_MAX)
        return reason ? reason : ASK;
    if (!take(run, ':'))
        return NOT_JSON;
    for (int64_t other = first; other < keys->count; other++) {
        int32_t start = ends_in(keys)[other];
        if (ends_in(keys)[other + 1] - start == bytes && !memcmp(keys->data + start, name, (size_t)bytes))
            return ASK;
    }
    reason = put_text(run, key, name, bytes);
    if (!reason)
        reason = decode_part(run, key + 1);
    return reason ? in_element(run, -1, reason) : put_struct(run, entry);
}

static int decode_elements(struct run *run, int64_t at, uint8_t close)
{
    const struct node *node = run->nodes + at;
    int64_t first = run->columns[node->first].count;
    if (take(run, close))
        return put_list(run, at);
    do {
        int reason = take_cells(run, at, 1);
        if (reason)
            return reason;
        if (node->form == MAP) {
            reason = decode_entry(run, node->first, first);
            if (reason)
                return reason;
            continue;
        }
        reason = decode_part(run, node->first);
        if (reason)
            return in_element(run, run->columns[node->first].count - first, reason);
    } while (take(run, ','));
    return take(run, close) ? put_list(run, at) : NOT_JSON;
}

static int decode_any(struct run *run, int64_t at)
{
    struct column *column = run->columns + at;
    uint8_t *room = begin(run, at) ? NULL : text_room(column, run->end - run->at), *to = room;
    if (!room)
        return NO_MEMORY;
    int reason = copy_any(run, &to, 0);
    return reason ? reason : end_text(column, to - room);
}

static int decode(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    uint8_t sign = peek(run);
    if (!sign)
        return NOT_JSON;
    switch (node->form) {
    case BOOLEAN:
        if (take_word(run, "true", 4))
            return put_bit(run, at, 1);
        return take_word(run, "false", 5) ? put_bit(run, at, 0) : NOT_BOOLEAN;
    case WHOLE:
    case REAL:
    case DECIMAL:
        return decode_number(run, at);
    case OBJECT:
        return take(run, '{') ? decode_object(run, at) : NOT_OBJECT;
    case MAP:
        return take(run, '{') ? decode_elements(run, at, '}') : NOT_OBJECT;
    case ARRAY:
        return take(run, '[') ? decode_elements(run, at, ']') : NOT_ARRAY;
    case ANY:
        return decode_any(run, at);
    default:
        return decode_string(run, at);
    }
}

static int decode_body(struct run *run)
{
    const uint8_t *start = run->at;
    if (!is_text(start, run->end - start))
        return at_node(run, 0, NOT_UTF8);
    int reason = decode(run, 0);
    if (!reason && !peek(run))
        reason = run->at < run->end ? MORE_JSON : FITS;
    else if (!reason)
        reason = MORE_JSON;
    if (reason <= ASK)
        return reason;
    if (run->fault.is_kept)
        return ASK;
    /* whatever else is wrong, a body that is not JSON is that in the first place */
    run->at = start;
    int syntax = skip(run, 0);
    skip_space(run);
    if (!syntax && run->at < run->end)
        syntax = MORE_JSON;
    if (syntax) {
        run->fault.places = 0;
        return at_node(run, 0, syntax);
    }
    return named(run, 0, reason);
}
