/* What the tables in tables.h are made of. */

#include <stddef.h>
#include <stdint.h>

typedef int64_t word; /* a number or an address, as compiled functions take them */
typedef const void *const *api_table;

enum kind { INT, FLOAT, STRING };

struct value {
    int64_t number; /* of a FLOAT its bits */
    const char *text;
};

struct attribute {
    const char *name;
    enum kind kind;
    int is_required;
    struct value standard; /* the default */
    int free;              /* its place among the values that `set_attributes` gets; -1: it is compared with the table */
};

/* A node that the library can run. */
struct node {
    const struct value *values; /* of all attributes */
    const void *const *state;   /* the words of its state, into which `create` writes the addresses of this process */
    size_t state_words;
    const int *types;           /* of all inputs, -1 at the end; null: the overload says enough */
};

struct operator_ {
    const char *domain, *name;
    const struct attribute *attributes;
    size_t attribute_count, input_count, output_count;
    const uint8_t *inputs, *outputs; /* OrtCustomOpInputOutputCharacteristic */
    int is_homogeneous, takes_type; /* takes_type: the attribute output_dtype gives the type of the output, or else */
    int typed_by, instead;          /* the input of this index has it, or if the input is left out, it is `instead` */
    const word (*messages)[2]; /* null: there is no node of the operator */
    word (*set_attributes)(word state, word values);
    word (*compute)(word state, word context);
    word (*prepare)(word state, word constants);
    word (*destroy)(word state);
};

struct feature {
    unsigned leaf, subleaf, register_, bit;
    const char *name;
};

/* There are hundreds of overloads, so that they hold indices instead of addresses, which a linker would have to relocate. */
#define OVERLOAD                                                                                                           \
    struct overload {                                                                                                      \
        uint16_t of, first_node, node_count;                                                                               \
        uint8_t first_release;      /* of ONNX Runtime: 24 is 1.24 */                                                      \
        uint8_t types[MAX_TYPES];  /* ONNXTensorElementDataType of inputs, then of outputs; ANY_TYPE: any */              \
        uint8_t held[MAX_OUTPUTS]; /* of each output of any type the type that it has unless it is uint8 */               \
    }
