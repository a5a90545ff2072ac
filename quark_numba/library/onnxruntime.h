/* Calls of ONNX Runtime's C API, by the indices of its functions, and messages. */

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define CALL(api, index, ...) (((word (*)())(api)[index])(__VA_ARGS__))
#define CHECK(expression) do { word status_ = (expression); if (status_) return status_; } while (0)

static int is_done(api_table api, word status) {
    if (status) CALL(api, ReleaseStatus, status);
    return !status;
}

/* Text of a limited length: what does not fit is left out. */
struct text {
    char characters[1024];
    size_t length;
};

/* Add at most a number of characters. */
static void add_some(struct text *text, const char *more, size_t most) {
    size_t length = strlen(more), room = sizeof text->characters - 1 - text->length;
    if (length > most) length = most;
    if (length > room) length = room;
    memcpy(text->characters + text->length, more, length);
    text->length += length;
}

static void add(struct text *text, const char *more) { add_some(text, more, sizeof text->characters); }

static void add_number(struct text *text, int64_t number) {
    char digits[24], *at = digits + sizeof digits - 1;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    *at = 0;
    do *--at = (char)('0' + rest % 10); while (rest /= 10);
    if (number < 0) *--at = '-';
    add(text, at);
}

/* A status with a message of several parts. */
#define FAIL(api, ...) fail(api, (const char *const[]){"quark_numba: ", __VA_ARGS__, 0})

static word fail(api_table api, const char *const *parts) {
    struct text text = {0};
    while (*parts) add(&text, *parts++);
    return CALL(api, CreateStatus, (word)ORT_FAIL, (word)text.characters);
}

/* The end of a message about a node; empty if ONNX Runtime does not tell its name. */
static struct text node_of(api_table api, word info) {
    struct text text = {0};
    char name[256] = "";
    size_t size = sizeof name;
    if (is_done(api, CALL(api, KernelInfo_GetNodeName, info, (word)name, (word)&size))) {
        add(&text, " (node '");
        add(&text, name);
        add(&text, "')");
    }
    return text;
}

/* Read an attribute, or else its default. A text is allocated, unless it is the default. */
static word read_attribute(api_table api, word info, const struct attribute *attribute, struct value *result) {
    int64_t number = 0;
    float real = 0;
    size_t size = 0;
    word status, name = (word)attribute->name;
    *result = (struct value){0, 0};
    if (attribute->kind == INT) status = CALL(api, KernelInfoGetAttribute_int64, info, name, (word)&number);
    else if (attribute->kind == FLOAT) {
        status = CALL(api, KernelInfoGetAttribute_float, info, name, (word)&real);
        uint32_t bits;
        memcpy(&bits, &real, sizeof bits);
        number = bits;
    } else {
        status = CALL(api, KernelInfoGetAttribute_string, info, name, (word)0, (word)&size);
        if (!status) {
            char *characters = malloc(size + 1);
            if (!characters) return FAIL(api, "attribute ", attribute->name, ": out of memory");
            characters[0] = characters[size] = 0;
            status = CALL(api, KernelInfoGetAttribute_string, info, name, (word)characters, (word)&size);
            result->text = characters;
        }
    }
    result->number = number;
    if (!status) return 0;
    const char *why = (const char *)CALL(api, GetErrorMessage, status);
    word failure = 0;
    struct text node = node_of(api, info);
    if (!strstr(why, "No attribute with")) failure = FAIL(api, "attribute ", attribute->name, ": ", why, node.characters);
    else if (attribute->is_required) failure = FAIL(api, "attribute ", attribute->name, " is missing", node.characters);
    else *result = attribute->standard;
    CALL(api, ReleaseStatus, status);
    return failure;
}

/* The element type of an input or output; ANY_TYPE if it is not a tensor. */
static word type_of(api_table api, word info, int get, size_t index, int *type) {
    word type_info = 0, tensor = 0, status;
    *type = ANY_TYPE;
    CHECK(CALL(api, get, info, (word)index, (word)&type_info));
    status = CALL(api, CastTypeInfoToTensorInfo, type_info, (word)&tensor);
    if (!status && tensor) status = CALL(api, GetTensorElementType, tensor, (word)type);
    CALL(api, ReleaseTypeInfo, type_info);
    return status;
}

/* The address and the number of elements of an input; zeros if it is not a constant. */
static word constant_of(api_table api, word info, size_t index, word result[2]) {
    int is_constant = 0;
    word value = 0, shape = 0, status;
    result[0] = result[1] = 0;
    CHECK(CALL(api, KernelInfoGetConstantInput_tensor, info, (word)index, (word)&is_constant, (word)&value));
    if (!is_constant) return 0;
    CHECK(CALL(api, GetTensorTypeAndShape, value, (word)&shape));
    status = CALL(api, GetTensorShapeElementCount, shape, (word)&result[1]);
    CALL(api, ReleaseTensorTypeAndShapeInfo, shape);
    CHECK(status);
    return CALL(api, GetTensorMutableData, value, (word)&result[0]);
}

/* Whether each dimension has a size or a name. A scalar looks like an unknown shape. */
static int has_shape(api_table api, word shape) {
    enum { MAX_DIMENSIONS = 64 };
    size_t rank = 0;
    int64_t sizes[MAX_DIMENSIONS];
    const char *names[MAX_DIMENSIONS] = {0};
    if (!is_done(api, CALL(api, GetDimensionsCount, shape, (word)&rank)) || rank == 0 || rank > MAX_DIMENSIONS) return 0;
    if (!is_done(api, CALL(api, GetDimensions, shape, (word)sizes, (word)rank))) return 0;
    if (!is_done(api, CALL(api, GetSymbolicDimensions, shape, (word)names, (word)rank))) return 0;
    for (size_t i = 0; i < rank; i++)
        if (sizes[i] < 0 && (!names[i] || !*names[i])) return 0;
    return 1;
}

