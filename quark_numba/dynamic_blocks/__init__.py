"""The wing of formats whose blocks have a scale that is computed from their largest element and stored beside the codes: NVFP4
and MXFP8, as NVIDIA's TensorRT computes them. The last block along the axis has to be whole."""
