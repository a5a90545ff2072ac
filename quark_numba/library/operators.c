/* The operators of a stand-alone library: what ONNX Runtime calls when it registers the library and creates its kernels.

   This file and the headers beside it never change. What differs from library to library is in tables.h, which quark_numba
   writes: numbers of ONNX Runtime's C API, the functions compiled from kernels, and for each operator the nodes that the
   library can run. A node is compared with these; its kernel is a copy of the state that belongs to it. The library keeps
   nothing else, starts no thread and reads no environment variable. */

#include "structures.h"
#include "tables.h"
#include "onnxruntime.h"

struct custom_op {
    struct { uint32_t version; const void *functions[FUNCTIONS]; } table; /* struct OrtCustomOp */
    const struct overload *overload;
    api_table api;
    int has_shape_reference;
};

static const struct operator_ *operator_of(const struct custom_op *self) { return &OPERATORS[self->overload->of]; }

struct registered {
    api_table api;
    word domains[DOMAINS];
    struct custom_op operators[];
};

struct kernel {
    word (*compute)(word state, word context);
    word (*destroy)(word state);
    word state; /* `own`, or what the operator's `prepare` made of it */
    word own[];
};

#define NO_MEMORY "out of memory"

static int is_same(const struct operator_ *of, const struct value *found, const struct value *expected) {
    for (size_t i = 0; i < of->attribute_count; i++) {
        int is_text = of->attributes[i].kind == STRING;
        if (of->attributes[i].free >= 0) continue;
        if (is_text ? strcmp(found[i].text, expected[i].text) != 0 : found[i].number != expected[i].number) return 0;
    }
    return 1;
}

static word has_types(api_table api, word info, const struct node *node, int *result) {
    size_t count = 0, i = 0;
    *result = !node->types;
    if (!node->types) return 0;
    CHECK(CALL(api, KernelInfo_GetInputCount, info, (word)&count));
    for (; node->types[i] >= 0; i++) {
        int type;
        if (i >= count) return 0;
        CHECK(type_of(api, info, KernelInfo_GetInputTypeInfo, i, &type));
        if (type != node->types[i]) return 0;
    }
    *result = i == count;
    return 0;
}

static word lacks(const struct custom_op *self, word info, const struct value *found) {
    const struct operator_ *of = operator_of(self);
    enum { MAX_CHARACTERS = 90 }; /* of a value, as a region's program may be long */
    struct text text = {0};
    add(&text, *of->domain ? of->domain : "ai.onnx");
    add(&text, "::");
    add(&text, of->name);
    for (size_t i = 0; i < of->input_count; i++) {
        add(&text, i ? ", " : " of ");
        add(&text, TYPES[self->overload->types[i]]);
    }
    for (size_t i = 0; i < of->attribute_count; i++) {
        add(&text, i ? ", " : " with ");
        add(&text, of->attributes[i].name);
        if (of->attributes[i].kind == FLOAT) continue;
        add(&text, " = ");
        if (of->attributes[i].kind == INT) add_number(&text, found[i].number);
        else add_some(&text, found[i].text, MAX_CHARACTERS);
    }
    const char *command = ", or these inputs; run the models beside it, or build one of all models: " COMMAND;
    return FAIL(self->api, "this library lacks ", text.characters, command, node_of(self->api, info).characters);
}

static word make_kernel(
    const struct custom_op *self, word info, const struct value *found, const struct node *node, word *result
) {
    const struct operator_ *of = operator_of(self);
    word constants[2 * MAX_INPUTS];
    word values[MAX_ATTRIBUTES + 1] = {0};
    for (size_t i = 0; of->prepare && i < of->input_count; i++) CHECK(constant_of(self->api, info, i, constants + 2 * i));
    struct kernel *kernel = malloc(sizeof *kernel + node->state_words * sizeof(word));
    if (!kernel) return FAIL(self->api, NO_MEMORY);
    memcpy(kernel->own, node->state, node->state_words * sizeof(word));
    for (size_t i = 0; i < of->attribute_count; i++)
        if (of->attributes[i].free >= 0) values[of->attributes[i].free] = found[i].number;
    if (of->set_attributes && !of->set_attributes((word)kernel->own, (word)values)) {
        free(kernel);
        return lacks(self, info, found);
    }
    kernel->own[STATE_API] = (word)self->api;
    kernel->own[STATE_HAS_SHAPE_REFERENCE] = self->has_shape_reference;
    kernel->own[STATE_MESSAGES] = (word)of->messages;
    kernel->compute = of->compute;
    kernel->destroy = of->destroy;
    kernel->state = (word)kernel->own;
    if (of->prepare) kernel->state = of->prepare(kernel->state, (word)constants);
    if (!kernel->state) { free(kernel); return FAIL(self->api, NO_MEMORY); }
    *result = (word)kernel;
    return 0;
}

static word create(const struct custom_op *self, api_table api, word info, word *result) {
    const struct overload *overload = self->overload;
    const struct operator_ *of = operator_of(self);
    struct value found[MAX_ATTRIBUTES + 1];
    size_t read = 0;
    word status = 0;
    *result = 0;
    (void)api; /* the one that the operators were registered with, which has the functions of API_VERSION */
    for (size_t i = 0; i < of->output_count; i++)
        if (overload->types[of->input_count + i] == ANY_TYPE) {
            int type;
            CHECK(type_of(self->api, info, KernelInfo_GetOutputTypeInfo, i, &type));
            if (type != UINT8_TYPE && type != overload->held[i])
                return FAIL(self->api, "an output is declared as another type", node_of(self->api, info).characters);
        }
    while (!status && read < of->attribute_count) {
        status = read_attribute(self->api, info, &of->attributes[read], &found[read]);
        read++;
    }
    const struct node *node = 0;
    const struct node *each = NODES + overload->first_node, *end = each + overload->node_count;
    for (; !status && !node && each < end; each++)
        if (is_same(of, found, each->values)) {
            int fits;
            status = has_types(self->api, info, each, &fits);
            if (!status && fits) node = each;
        }
    if (!status) status = node ? make_kernel(self, info, found, node, result) : lacks(self, info, found);
    for (size_t i = 0; i < read; i++)
        if (found[i].text != of->attributes[i].standard.text) free((void *)found[i].text);
    return status;
}

static word compute(const struct kernel *kernel, word context) { return kernel->compute(kernel->state, context); }

static void destroy(struct kernel *kernel) {
    if (kernel && kernel->destroy) kernel->destroy(kernel->state);
    free(kernel);
}

/* OrtCustomOp::InferOutputShapeFn. ONNX Runtime ignores a status that is returned here: if the type or the shape is not known, it
   falls back to its own inference. The API can set neither the type alone nor a shape that is partly unknown. */
static word infer(const struct custom_op *self, word context) {
    const struct operator_ *of = operator_of(self);
    api_table api = self->api;
    word attribute = 0, shape = 0;
    int64_t number = 0;
    size_t size = 0;
    int type = ANY_TYPE;
    if (is_done(api, CALL(api, ShapeInferContext_GetAttribute, context, (word)"output_dtype", (word)&attribute)) &&
        !is_done(api, CALL(api, ReadOpAttr, attribute, (word)ORT_OP_ATTR_INT, (word)&number, (word)sizeof number, (word)&size)))
        return 0;
    if (number > 0 && number < (int64_t)COUNT(TYPE_OF_ATTRIBUTE)) type = TYPE_OF_ATTRIBUTE[number];
    if (number == 0) {
        type = of->instead;
        if (of->typed_by >= 0 &&
            is_done(api, CALL(api, ShapeInferContext_GetInputTypeShape, context, (word)of->typed_by, (word)&shape)) &&
            !is_done(api, CALL(api, GetTensorElementType, shape, (word)&type)))
            return 0;
    }
    if (type == ANY_TYPE) return 0;
    if (!is_done(api, CALL(api, ShapeInferContext_GetInputTypeShape, context, (word)0, (word)&shape))) return 0;
    if (has_shape(api, shape) && is_done(api, CALL(api, SetTensorElementType, shape, (word)type)))
        is_done(api, CALL(api, ShapeInferContext_SetOutputTypeShape, context, (word)0, shape));
    return 0;
}

static const char *get_name(const struct custom_op *self) { return operator_of(self)->name; }
static const char *get_provider(const struct custom_op *self) { (void)self; return 0; /* the CPU's */ }
static size_t input_count(const struct custom_op *self) { return operator_of(self)->input_count; }
static size_t output_count(const struct custom_op *self) { return operator_of(self)->output_count; }
static int input_type(const struct custom_op *self, size_t i) { return self->overload->types[i]; }
static int output_type(const struct custom_op *self, size_t i) { return self->overload->types[operator_of(self)->input_count + i]; }
static int input_option(const struct custom_op *self, size_t i) { return operator_of(self)->inputs[i]; }
static int output_option(const struct custom_op *self, size_t i) { return operator_of(self)->outputs[i]; }
static int memory_type(const struct custom_op *self, size_t i) { (void)self; (void)i; return 0; /* OrtMemTypeDefault */ }
static int fewest_inputs(const struct custom_op *self) { (void)self; return 0; /* of a variadic input */ }
static int is_homogeneous(const struct custom_op *self) { return operator_of(self)->is_homogeneous; }

static const void *const functions[FUNCTIONS] = {
    [GetName] = get_name,
    [GetExecutionProviderType] = get_provider,
    [GetInputType] = input_type,
    [GetInputTypeCount] = input_count,
    [GetInputCharacteristic] = input_option,
    [GetInputMemoryType] = memory_type,
    [GetVariadicInputMinArity] = fewest_inputs,
    [GetVariadicInputHomogeneity] = is_homogeneous,
    [GetOutputType] = output_type,
    [GetOutputTypeCount] = output_count,
    [GetOutputCharacteristic] = output_option,
    [CreateKernelV2] = create,
    [KernelComputeV2] = compute,
    [KernelDestroy] = destroy,
    [InferOutputShapeFn] = infer,
};

/* The name of an instruction set that this processor or system lacks and the library needs; null if nothing is missing. */
static const char *lacking(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d, state = 0;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    if (c >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(state), "=d"(d) : "c"(0)); /* the registers that the system saves */
    for (size_t i = 0; i + 1 < COUNT(FEATURES); i++) {
        const struct feature *each = &FEATURES[i];
        unsigned found[4], needed = strncmp(each->name, "avx512", 6) == 0 ? 0xe6 : 6;
        __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(each->leaf & 0x80000000u), "c"(0));
        if (a < each->leaf) return each->name;
        __asm__ volatile("cpuid" : "=a"(found[0]), "=b"(found[1]), "=c"(found[2]), "=d"(found[3])
                         : "a"(each->leaf), "c"(each->subleaf));
        if (!(found[each->register_] >> each->bit & 1)) return each->name;
        if (strncmp(each->name, "avx", 3) == 0 && (state & needed) != needed) return each->name;
    }
#endif
    return 0;
}

static struct registered *kept; /* of the first ONNX Runtime of the process */

static word make(api_table api, int release, struct registered **result) {
    struct registered *made = malloc(sizeof *made + COUNT(OVERLOADS) * sizeof made->operators[0]);
    if (!made) return FAIL(api, NO_MEMORY);
    made->api = api;
    for (size_t i = 0; i < DOMAINS; i++) CHECK(CALL(api, CreateCustomOpDomain, (word)DOMAIN_NAMES[i], (word)&made->domains[i]));
    for (size_t i = 0; i < COUNT(OVERLOADS); i++) {
        struct custom_op *each = &made->operators[i];
        each->table.version = CUSTOM_OP_VERSION;
        memcpy(each->table.functions, functions, sizeof functions);
        each->overload = &OVERLOADS[i];
        if (!operator_of(each)->takes_type) each->table.functions[InferOutputShapeFn] = 0;
        each->api = api;
        each->has_shape_reference = release >= SHAPE_REFERENCE_RELEASE;
        if (release < OVERLOADS[i].first_release) continue;
        size_t domain = 0;
        while (strcmp(DOMAIN_NAMES[domain], operator_of(each)->domain) != 0) domain++;
        CHECK(CALL(api, CustomOpDomain_Add, made->domains[domain], (word)each));
    }
    *result = made;
    return 0;
}

#ifndef _WIN32
/* When the library is unloaded. */
__attribute__((destructor)) static void release(void) {
    if (!kept) return;
    for (size_t i = 0; i < DOMAINS; i++) CALL(kept->api, ReleaseCustomOpDomain, kept->domains[i]);
    free(kept);
}
#endif

#ifndef FIRST
#define EXPORT
#elif defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* The library has a part for each processor, with its own tables. A part leaves what it lacks to the next, and the first part's
   REGISTER is the library's RegisterCustomOps. */
#ifdef NEXT
word NEXT(word options, const void *const *base);
#endif

EXPORT word REGISTER(word options, const void *const *base) {
    api_table api = ((api_table(*)(uint32_t))base[0])(API_VERSION);
    const char *version = ((const char *(*)(void))base[1])();
    int is_there = 0, release = 0;
    if (!api) {
        api = ((api_table(*)(uint32_t))base[0])(1);
        return FAIL(api, "the library needs ONNX Runtime " FIRST_RELEASE " or later; this is ", version);
    }
    for (const char *at = strchr(version, '.'); at && *++at >= '0' && *at <= '9';) release = 10 * release + *at - '0';
    if (release < FIRST_MINOR) {
        const char *needs = "the library has ONNX's own operators, which needs ONNX Runtime " FLOAT_QDQ_RELEASE " or later";
        return FAIL(api, needs, "; this is ", version);
    }
    const char *missing = lacking();
#ifdef NEXT
    if (missing) return NEXT(options, base);
#endif
    if (missing)
        return FAIL(api, "the library was built for " CPU ", and this processor lacks ", missing, "; build it with another --cpu");
    CHECK(CALL(api, HasSessionConfigEntry, options, (word)REGISTERED, (word)&is_there));
    if (is_there) return 0;
    for (const char *const *entry = ENTRIES; *entry; entry += 2) {
        CHECK(CALL(api, HasSessionConfigEntry, options, (word)entry[0], (word)&is_there));
        if (!is_there) CHECK(CALL(api, AddSessionConfigEntry, options, (word)entry[0], (word)entry[1]));
    }
    struct registered *found = __atomic_load_n(&kept, __ATOMIC_ACQUIRE), *none = 0;
    if (!found || found->api != api) {
        CHECK(make(api, release, &found));
        __atomic_compare_exchange_n(&kept, &none, found, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }
    for (size_t i = 0; i < DOMAINS; i++) CHECK(CALL(api, AddCustomOpDomain, options, found->domains[i]));
    return CALL(api, AddSessionConfigEntry, options, (word)REGISTERED, (word)"library");
}
