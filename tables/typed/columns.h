/* Columns that grow value by value, and their way to Arrow: what the decoders of all formats share.

   A plan is a schema's tree, level by level: the children of a node lie beside each other. Each node has a column. A
   body that does not fit leaves its row null, whatever was added of it before. Nothing is read beyond a body. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Why a body does not fit: the numbers of `Reason` in misfit.py. ASK: the plain twin has to judge. */
enum reason {
    NO_MEMORY = -1,
    FITS,
    ASK,
    NOT_JSON,
    MORE_JSON,
    NOT_UTF8,
    SURROGATE,
    NOT_OBJECT,
    NOT_ARRAY,
    NOT_BOOLEAN,
    NOT_NUMBER,
    NOT_WHOLE,
    NOT_DECIMAL,
    NOT_STRING,
    NOT_BASE64,
    NOT_DATE,
    NOT_TIMESTAMP,
    RANGE,
    MISSING,
    IS_NULL,
    UNKNOWN_FIELD,
    REPEATED,
    TRUNCATED,
    TRAILING,
    BRANCH,
    SYMBOL,
    LONG_NUMBER,
    LENGTH,
    ELEMENTS,
    NO_DIGITS,
    OTHER_SCHEMA,
    NO_HEADER,
    NOT_LOCAL,
    CONSTRAINT,
    NO_TAG
};
enum flag { NULLABLE = 1, REQUIRED = 2, CLOSED = 4, WRAPPED = 8 };
enum layout { STRUCT = 0, BITS = -1, TEXT = -2, LIST = -3 }; /* or the bytes of a value */
enum { PLACES = 4 };
#define NO_UNION (-2)

/* Numbers from Python, in this order. */
struct node {
    int64_t form;
    int64_t layout;
    int64_t flags;
    int64_t first, count; /* children */
    int64_t null;         /* NO_UNION, or the branch that is null, -1 if none is */
    int64_t size;         /* bytes of a fixed value; digits of a decimal */
    int64_t scale;
    int64_t low, high; /* the first value, and the last */
    int64_t unit;
    int64_t text, texts; /* the names of a struct's fields, or an enum's symbols */
    int64_t leaves;
    int64_t is_below_list;
    int64_t parent;
    int64_t number, group; /* Protobuf: of the field, and of its oneof or 0 */
};

struct column {
    int64_t count, room, nulls, bytes, bytes_room;
    uint8_t *valid, *values, *data;
};

struct fault {
    int64_t row, reason, node;
    int64_t places; /* of elements on the way to the node, the innermost first */
    int64_t place[PLACES];
    int64_t name, name_bytes;   /* of an unknown field, from the body's begin */
    int64_t value, value_bytes; /* of a field that is rescued */
    int64_t is_kept;            /* the row has what fits */
};

struct run {
    const struct node *nodes;
    int64_t node_count;
    const int32_t *text_ends; /* of names and symbols, behind a zero */
    const uint8_t *texts;
    struct column *columns;
    const uint8_t *begin, *at, *end; /* of the body */
    int64_t cells;
    int64_t rescues; /* whether a field that does not fit is null, and the others are kept */
    struct fault fault;
};

/* What the caller gives, and gets. */
struct job {
    const struct node *nodes;
    int64_t node_count;
    const int32_t *text_ends;
    const uint8_t *texts;
    const uint8_t *valid; /* of the bodies; NULL if none is null */
    const int32_t *ends;
    const uint8_t *data;
    int64_t start, rows; /* the first body's place in `valid` and `ends` */
    const uint8_t *header;
    int64_t header_bytes;
    int64_t cells_min, cells_per_byte;
    int64_t rescues;
    struct fault *faults; /* room for each row */
    int64_t fault_count;
};

static int32_t end_of(const int32_t *ends, int64_t at)
{
    int32_t end;
    memcpy(&end, ends + at, sizeof end);
    return end;
}

/* Columns ------------------------------------------------------------------------------------------------------ */

static int64_t value_bytes(const struct node *node, int64_t room)
{
    switch (node->layout) {
    case STRUCT:
        return 0;
    case BITS:
        return (room + 7) / 8;
    case TEXT:
    case LIST:
        return 4 * (room + 1);
    default:
        return node->layout * room;
    }
}

static int grow(struct column *column, const struct node *node, int64_t room)
{
    uint8_t *valid = realloc(column->valid, (size_t)(room + 7) / 8);
    if (!valid)
        return NO_MEMORY;
    column->valid = valid;
    int64_t bytes = value_bytes(node, room);
    uint8_t *values = bytes ? realloc(column->values, (size_t)bytes) : NULL;
    if (bytes && !values)
        return NO_MEMORY;
    column->values = values;
    if (!column->room && (node->layout == TEXT || node->layout == LIST))
        memset(values, 0, 4);
    column->room = room;
    return FITS;
}

static void set_bit(uint8_t *bits, int64_t at, int value)
{
    uint8_t mask = (uint8_t)(1 << (at & 7));
    bits[at >> 3] = (uint8_t)(value ? bits[at >> 3] | mask : bits[at >> 3] & ~mask);
}

static int32_t *ends_in(const struct column *column)
{
    return (int32_t *)(void *)column->values;
}

/* Begin a value that is not null. */
static int begin(struct run *run, int64_t at)
{
    struct column *column = run->columns + at;
    if (column->count == column->room && grow(column, run->nodes + at, 2 * column->room))
        return NO_MEMORY;
    set_bit(column->valid, column->count, 1);
    return FITS;
}

static int put_null(struct run *run, int64_t at)
{
    const struct node *node = run->nodes + at;
    struct column *column = run->columns + at;
    if (begin(run, at))
        return NO_MEMORY;
    set_bit(column->valid, column->count, 0);
    column->nulls++;
    if (node->layout > 0)
        memset(column->values + node->layout * column->count, 0, (size_t)node->layout);
    else if (node->layout == BITS)
        set_bit(column->values, column->count, 0);
    else if (node->layout != STRUCT)
        ends_in(column)[column->count + 1] = ends_in(column)[column->count];
    else
        for (int64_t child = node->first; child < node->first + node->count; child++)
            if (put_null(run, child))
                return NO_MEMORY;
    column->count++;
    return FITS;
}

static int put_number(struct run *run, int64_t at, int64_t value)
{
    struct column *column = run->columns + at;
    if (begin(run, at))
        return NO_MEMORY;
    /* the lower bytes of a number come first on every machine that this is for */
    size_t width = (size_t)run->nodes[at].layout;
    memcpy(column->values + width * (size_t)column->count++, &value, width);
    return FITS;
}

static int put_wide(struct run *run, int64_t at, __int128 value)
{
    struct column *column = run->columns + at;
    if (begin(run, at))
        return NO_MEMORY;
    memcpy(column->values + 16 * column->count++, &value, sizeof value);
    return FITS;
}

static int put_bit(struct run *run, int64_t at, int value)
{
    struct column *column = run->columns + at;
    if (begin(run, at))
        return NO_MEMORY;
    set_bit(column->values, column->count++, value);
    return FITS;
}

/* Room for `bytes` more of the text that is being added. */
static uint8_t *text_room(struct column *column, int64_t bytes)
{
    if (!column->data || column->bytes_room - column->bytes < bytes) {
        int64_t room = 2 * column->bytes_room > column->bytes + bytes ? 2 * column->bytes_room : column->bytes + bytes;
        uint8_t *data = realloc(column->data, (size_t)room + 64);
        if (!data)
            return NULL;
        column->data = data;
        column->bytes_room = room + 64;
    }
    return column->data + column->bytes;
}

/* End a text of which `bytes` are in the room. */
static int end_text(struct column *column, int64_t bytes)
{
    if (column->bytes + bytes > INT32_MAX)
        return RANGE;
    column->bytes += bytes;
    ends_in(column)[++column->count] = (int32_t)column->bytes;
    return FITS;
}

static int put_text(struct run *run, int64_t at, const uint8_t *text, int64_t bytes)
{
    struct column *column = run->columns + at;
    uint8_t *room = begin(run, at) ? NULL : text_room(column, bytes);
    if (!room)
        return NO_MEMORY;
    if (bytes)
        memcpy(room, text, (size_t)bytes);
    return end_text(column, bytes);
}

/* A struct whose fields are all there. */
static int put_struct(struct run *run, int64_t at)
{
    if (begin(run, at))
        return NO_MEMORY;
    run->columns[at].count++;
    return FITS;
}

/* A list or map whose elements are all there. */
static int put_list(struct run *run, int64_t at)
{
    struct column *column = run->columns + at;
    int64_t end = run->columns[run->nodes[at].first].count;
    if (begin(run, at))
        return NO_MEMORY;
    if (end > INT32_MAX)
        return RANGE;
    ends_in(column)[++column->count] = (int32_t)end;
    return FITS;
}

/* Forget the values of a node behind `count`, and those below them. */
static void cut(struct run *run, int64_t at, int64_t count)
{
    const struct node *node = run->nodes + at;
    struct column *column = run->columns + at;
    for (; column->count > count; column->count--)
        column->nulls -= !(column->valid[(column->count - 1) >> 3] >> ((column->count - 1) & 7) & 1);
    if (node->layout == TEXT)
        column->bytes = ends_in(column)[count];
    if (node->layout == LIST)
        count = ends_in(column)[count];
    for (int64_t child = node->first; child < node->first + node->count; child++)
        cut(run, child, count);
}

static int take_cells(struct run *run, int64_t at, int64_t elements)
{
    run->cells -= elements * run->nodes[at].leaves;
    return run->cells < 0 ? ELEMENTS : FITS;
}

static int at_node(struct run *run, int64_t at, int reason)
{
    run->fault.node = at;
    return reason;
}

/* The reason, of a node unless what is within has named itself. */
static int named(struct run *run, int64_t at, int reason)
{
    return reason && run->fault.node < 0 ? at_node(run, at, reason) : reason;
}

/* Note the place of the element that a fault is in, on the way up; the twin says the place behind a map's key. */
static int in_element(struct run *run, int64_t place, int reason)
{
    if (reason == NO_MEMORY || reason == ASK)
        return reason;
    if (place < 0 || run->fault.places == PLACES)
        return ASK;
    run->fault.place[run->fault.places++] = place;
    return reason;
}

/* UTF-8 without surrogates, and without long forms. */
static int is_text(const uint8_t *at, int64_t bytes)
{
    const uint8_t *end = at + bytes;
    while (at < end) {
        uint64_t word;
        for (; end - at >= 8; at += 8) {
            memcpy(&word, at, 8);
            if (word & 0x8080808080808080u)
                break;
        }
        if (at == end)
            break;
        if (*at < 0x80) {
            at++;
            continue;
        }
        int more = *at >= 0xF0 ? 3 : *at >= 0xE0 ? 2 : 1;
        if (*at < 0xC2 || *at > 0xF4 || end - at <= more)
            return 0;
        if ((*at == 0xE0 && at[1] < 0xA0) || (*at == 0xED && at[1] > 0x9F) || (*at == 0xF0 && at[1] < 0x90) ||
            (*at == 0xF4 && at[1] > 0x8F))
            return 0;
        for (int next = 1; next <= more; next++)
            if ((at[next] & 0xC0) != 0x80)
                return 0;
        at += more + 1;
    }
    return 1;
}

/* Arrow's C data interface --------------------------------------------------------------------------------------- */

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

static void release(struct ArrowArray *array)
{
    for (int64_t child = 0; child < array->n_children; child++) {
        if (array->children[child]->release)
            array->children[child]->release(array->children[child]);
        free(array->children[child]);
    }
    for (int64_t buffer = 0; buffer < array->n_buffers; buffer++)
        free((void *)(uintptr_t)array->buffers[buffer]);
    free(array->buffers);
    free(array->children);
    array->release = NULL;
}

/* Give a node's column, which is empty then, to `array`. What is there when memory ends is released by its owner. */
static int export_column(struct run *run, int64_t at, struct ArrowArray *array)
{
    const struct node *node = run->nodes + at;
    struct column *column = run->columns + at;
    memset(array, 0, sizeof *array);
    array->length = column->count;
    array->null_count = column->nulls;
    array->buffers = calloc(3, sizeof *array->buffers);
    array->children = calloc((size_t)node->count + 1, sizeof *array->children);
    array->release = release;
    if (!array->buffers || !array->children)
        return NO_MEMORY;
    array->n_buffers = node->layout == STRUCT ? 1 : node->layout == TEXT ? 3 : 2;
    if (!column->nulls) {
        free(column->valid);
        column->valid = NULL;
    }
    array->buffers[0] = column->valid;
    array->buffers[1] = column->values;
    if (node->layout == TEXT)
        array->buffers[2] = column->data;
    memset(column, 0, sizeof *column);
    for (int64_t child = 0; child < node->count; child++) {
        array->children[child] = malloc(sizeof **array->children);
        if (!array->children[child])
            return NO_MEMORY;
        array->n_children++;
        if (export_column(run, node->first + child, array->children[child]))
            return NO_MEMORY;
    }
    return FITS;
}

/* All bodies ----------------------------------------------------------------------------------------------------- */

static int decode_body(struct run *run);

static int decode_row(struct run *run, const struct job *job, int64_t row)
{
    int64_t place = job->start + row, start = end_of(job->ends, place);
    int64_t bytes = end_of(job->ends, place + 1) - start;
    run->fault = (struct fault){.row = row, .node = -1};
    if (bytes <= 0 || (job->valid && !(job->valid[place >> 3] >> (place & 7) & 1)))
        return put_null(run, 0);
    run->begin = job->data + start;
    run->end = run->begin + bytes;
    run->at = run->begin + job->header_bytes;
    run->cells = job->cells_min + job->cells_per_byte * bytes;
    int reason = OTHER_SCHEMA;
    if (bytes >= job->header_bytes && !memcmp(run->begin, job->header, (size_t)job->header_bytes))
        reason = decode_body(run);
    if (reason <= FITS)
        return reason;
    cut(run, 0, row);
    run->fault.reason = reason;
    run->fault.is_kept = 0;
    return put_null(run, 0) ? NO_MEMORY : reason;
}

/* Decode all bodies to `array`: 0, or -1 without memory. Each source has a name for it. */
int DECODE(struct job *job, struct ArrowArray *array)
{
    struct run run = {job->nodes, job->node_count, job->text_ends, job->texts, NULL, NULL, NULL, NULL, 0, job->rescues, {0}};
    int reason = NO_MEMORY;
    array->release = NULL;
    run.columns = calloc((size_t)job->node_count, sizeof *run.columns);
    if (!run.columns)
        return NO_MEMORY;
    for (int64_t at = 0; at < job->node_count; at++)
        if (grow(run.columns + at, run.nodes + at, run.nodes[at].is_below_list || job->rows < 8 ? 8 : job->rows))
            goto done;
    job->fault_count = 0;
    for (int64_t row = 0; row < job->rows; row++) {
        reason = decode_row(&run, job, row);
        if (reason == NO_MEMORY)
            goto done;
        if (reason > FITS || (reason == FITS && run.fault.is_kept))
            job->faults[job->fault_count++] = run.fault;
    }
    reason = export_column(&run, 0, array);
    if (reason)
        release(array);
done:
    for (int64_t at = 0; at < job->node_count; at++) {
        free(run.columns[at].valid);
        free(run.columns[at].values);
        free(run.columns[at].data);
    }
    free(run.columns);
    return reason;
}
