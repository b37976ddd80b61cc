/* The syntax of JSON: what `json.c` reads values with. */

#include "columns.h"

enum { DEPTH_MAX = 200, KEYS_COMPARED_MAX = 128, NAMES_COMPARED_MAX = 32, FAR = 1000000 };
enum { HAS_ESCAPES = 1, HAS_OTHER_FORM = 2 };

/* Syntax ------------------------------------------------------------------------------------------------------- */

static void skip_space(struct run *run)
{
    while (run->at < run->end && (*run->at == ' ' || *run->at == '\n' || *run->at == '\t' || *run->at == '\r'))
        run->at++;
}

/* The next sign behind spaces, or 0 at the end. */
static uint8_t peek(struct run *run)
{
    skip_space(run);
    return run->at < run->end ? *run->at : 0;
}

static int take(struct run *run, uint8_t sign)
{
    int is_there = peek(run) == sign;
    run->at += is_there;
    return is_there;
}

static int take_word(struct run *run, const char *word, int64_t bytes)
{
    if (run->end - run->at < bytes || memcmp(run->at, word, (size_t)bytes))
        return 0;
    run->at += bytes;
    return 1;
}

static int hex(const uint8_t *at)
{
    int value = 0;
    for (int n = 0; n < 4; n++) {
        uint8_t sign = at[n] | 0x20;
        if (at[n] >= '0' && at[n] <= '9')
            value = value << 4 | (at[n] - '0');
        else if (sign >= 'a' && sign <= 'f')
            value = value << 4 | (sign - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* The text of a string as it stands there; `escapes` says whether it has any. */
static int read_raw(struct run *run, const uint8_t **text, int64_t *bytes, int *escapes)
{
    const uint8_t *at = run->at + 1;
    *escapes = 0;
    for (; at < run->end && *at != '"'; at++) {
        if (*at < 0x20)
            return NOT_JSON;
        if (*at != '\\')
            continue;
        *escapes |= HAS_ESCAPES;
        if (++at == run->end || !strchr("\"\\/bfnrtu", *at) || !*at)
            return NOT_JSON;
        if (*at == 'u' && (run->end - at <= 4 || hex(at + 1) < 0))
            return NOT_JSON;
        *escapes |= *at == 'u' || *at == '/' ? HAS_OTHER_FORM : 0;
    }
    if (at == run->end)
        return NOT_JSON;
    *text = run->at + 1;
    *bytes = at - *text;
    run->at = at + 1;
    return FITS;
}

struct number {
    const uint8_t *text;
    int64_t bytes;
    int64_t digits;   /* behind leading zeros; those at the end count */
    int64_t exponent; /* of the last digit */
    int is_negative, is_plain, has_point, is_far; /* far: its exponent is cut */
    uint64_t mantissa; /* if there are 19 digits at most */
};

static int is_digit(const struct run *run)
{
    return run->at < run->end && *run->at >= '0' && *run->at <= '9';
}

static void read_digits(struct run *run, struct number *number)
{
    for (; is_digit(run); run->at++) {
        number->digits += number->digits || *run->at != '0';
        if (number->digits <= 19)
            number->mantissa = 10 * number->mantissa + (*run->at - '0');
    }
}

static int read_number(struct run *run, struct number *number)
{
    *number = (struct number){.text = run->at, .is_plain = 1};
    if (*run->at == '-') {
        number->is_negative = 1;
        run->at++;
    }
    if (!is_digit(run))
        return NOT_JSON;
    if (*run->at == '0')
        run->at++;
    else
        read_digits(run, number);
    if (run->at < run->end && *run->at == '.') {
        const uint8_t *start = ++run->at;
        number->has_point = 1;
        if (!is_digit(run))
            return NOT_JSON;
        read_digits(run, number);
        number->exponent = start - run->at;
    }
    if (run->at < run->end && (*run->at | 0x20) == 'e') {
        int is_negative = 0;
        int64_t exponent = 0;
        number->is_plain = 0;
        run->at++;
        if (run->at < run->end && (*run->at == '+' || *run->at == '-'))
            is_negative = *run->at++ == '-';
        if (!is_digit(run))
            return NOT_JSON;
        for (; is_digit(run); run->at++)
            if (exponent >= FAR)
                number->is_far = 1;
            else
                exponent = 10 * exponent + (*run->at - '0');
        number->exponent += is_negative ? -exponent : exponent;
    }
    number->bytes = run->at - number->text;
    return FITS;
}

static int skip(struct run *run, int depth)
{
    const uint8_t *text;
    int64_t bytes;
    int escapes, reason;
    struct number number;
    uint8_t sign = peek(run);
    if (depth > DEPTH_MAX)
        return ASK;
    if (sign == '"')
        return read_raw(run, &text, &bytes, &escapes);
    if (sign == '-' || (sign >= '0' && sign <= '9'))
        return read_number(run, &number);
    if (sign != '{' && sign != '[')
        return take_word(run, "true", 4) || take_word(run, "false", 5) || take_word(run, "null", 4) ? FITS : NOT_JSON;
    uint8_t close = sign == '{' ? '}' : ']';
    run->at++;
    if (take(run, close))
        return FITS;
    do {
        if (sign == '{') {
            if (peek(run) != '"')
                return NOT_JSON;
            reason = read_raw(run, &text, &bytes, &escapes);
            if (reason)
                return reason;
            if (!take(run, ':'))
                return NOT_JSON;
        }
        reason = skip(run, depth + 1);
        if (reason)
            return reason;
    } while (take(run, ','));
    return take(run, close) ? FITS : NOT_JSON;
}

static uint8_t *put_bytes(uint8_t *to, const uint8_t *bytes, int64_t count)
{
    memcpy(to, bytes, (size_t)count);
    return to + count;
}

/* Whether Python's Decimal writes a number in another form than it was sent in. */
static int has_other_form(const struct number *number)
{
    return !number->is_plain || number->exponent + (number->digits ? number->digits : 1) - 1 < -6;
}

/* Any value as text without spaces. What the twin would write in another form, and names in one object that are alike or
   too many to compare, are left to it. */
static int copy_any(struct run *run, uint8_t **to, int depth)
{
    const uint8_t *names[NAMES_COMPARED_MAX], *start, *text;
    int64_t sizes[NAMES_COMPARED_MAX], bytes, count = 0;
    int escapes, reason;
    struct number number;
    uint8_t sign = peek(run), close = sign == '{' ? '}' : ']';
    start = run->at;
    if (depth > DEPTH_MAX)
        return ASK;
    if (sign != '{' && sign != '[') {
        if (sign == '"')
            reason = read_raw(run, &text, &bytes, &escapes) ? NOT_JSON : escapes & HAS_OTHER_FORM ? ASK : FITS;
        else if (sign == '-' || (sign >= '0' && sign <= '9'))
            reason = read_number(run, &number) ? NOT_JSON : has_other_form(&number) ? ASK : FITS;
        else
            reason = skip(run, depth);
        *to = put_bytes(*to, start, run->at - start);
        return reason;
    }
    *to = put_bytes(*to, run->at++, 1);
    while (count || !take(run, close)) {
        if (sign == '{') {
            if (peek(run) != '"')
                return NOT_JSON;
            start = run->at;
            reason = read_raw(run, &text, &bytes, &escapes);
            if (reason || escapes || count == NAMES_COMPARED_MAX)
                return reason ? reason : ASK;
            for (int64_t other = 0; other < count; other++)
                if (sizes[other] == bytes && !memcmp(names[other], text, (size_t)bytes))
                    return ASK;
            names[count] = text;
            sizes[count] = bytes;
            *to = put_bytes(*to, start, run->at - start);
            if (!take(run, ':'))
                return NOT_JSON;
            *to = put_bytes(*to, (const uint8_t *)":", 1);
        }
        count++;
        reason = copy_any(run, to, depth + 1);
        if (reason)
            return reason;
        if (take(run, close))
            break;
        if (!take(run, ','))
            return NOT_JSON;
        *to = put_bytes(*to, (const uint8_t *)",", 1);
    }
    *to = put_bytes(*to, &close, 1);
    return FITS;
}

/* Texts -------------------------------------------------------------------------------------------------------- */

static uint8_t *put_code(uint8_t *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (uint8_t)code;
    } else if (code < 0x800) {
        *to++ = (uint8_t)(0xC0 | code >> 6);
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        if (code < 0x10000) {
            *to++ = (uint8_t)(0xE0 | code >> 12);
        } else {
            *to++ = (uint8_t)(0xF0 | code >> 18);
            *to++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        }
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Write a string without its escapes, which takes no more room than it; return its end, NULL with half a pair. */
static uint8_t *put_unescaped(uint8_t *to, const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        uint8_t sign = at[1];
        at += 2;
        if (sign != 'u') {
            const char *of = "bfnrt", *which = strchr(of, sign);
            *to++ = which ? (uint8_t)"\b\f\n\r\t"[which - of] : sign;
            continue;
        }
        uint32_t code = (uint32_t)hex(at);
        at += 4;
        if (code >= 0xD800 && code < 0xDC00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
            uint32_t low = (uint32_t)hex(at + 2);
            if (low >= 0xDC00 && low < 0xE000) {
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                at += 6;
            }
        }
        if (code >= 0xD800 && code < 0xE000)
            return NULL;
        to = put_code(to, code);
    }
    return to;
}

static int put_string(struct run *run, int64_t at, const uint8_t *text, int64_t bytes, int escapes)
{
    struct column *column = run->columns + at;
    if (!escapes)
        return put_text(run, at, text, bytes);
    uint8_t *room = begin(run, at) ? NULL : text_room(column, bytes);
    if (!room)
        return NO_MEMORY;
    uint8_t *end = put_unescaped(room, text, text + bytes);
    return end ? end_text(column, end - room) : SURROGATE;
}
