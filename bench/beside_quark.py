"""What is measured beside Quark's own library: contenders, models and configurations."""

from labels import DROP_IN, FLOAT, QUARK, SESSION

CONTENDERS = FLOAT, QUARK, DROP_IN, SESSION
CLASSIFIER = "textline_cls"
# The types of the classifier, as its files and as pages name them.
FORMATS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "u32": "uint32",
    "i32": "int32",
    "bfp16": "BFP16",
    "mx9": "MX9",
    "mxfp8": "MXFP8",
}
# The models whose operators Quark's library runs.
NAMES = [*(f"{CLASSIFIER}_{each}" for each in FORMATS), "style_bf16", "style_xint8", "tagger_u16"]
FINE_TUNED, STEPS = ("BFP16_ADAQUANT", "MX9_ADAQUANT"), 100
