"""What is measured beside Quark's own library: contenders, models and configurations."""

FLOAT, QUARK, ONE_LINE, SESSION = CONTENDERS = "float", "Quark's library", "one line changed", "InferenceSession"
CLASSIFIER = "textline_cls"
# The models with operators of Quark's that its library runs.
FORMATS = ("bf16", "fp16", "u32", "i32", "bfp16", "mx9", "mxfp8")
NAMES = [*(f"{CLASSIFIER}_{each}" for each in FORMATS), "style_bf16", "style_xint8", "tagger_u16"]
FINE_TUNED, STEPS = ("BFP16_ADAQUANT", "MX9_ADAQUANT"), 100
