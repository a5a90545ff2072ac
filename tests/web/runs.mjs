// Runs one model in ONNX Runtime Web, in Node and in a browser's page alike.

const ARRAYS = {
  bool: Uint8Array, float16: Uint16Array, float32: Float32Array, float64: Float64Array, int4: Uint8Array, int8: Int8Array,
  int16: Int16Array, int32: Int32Array, int64: BigInt64Array, uint4: Uint8Array, uint8: Uint8Array, uint16: Uint16Array,
  uint32: Uint32Array, uint64: BigUint64Array,
};

const bytesOf = text => Uint8Array.from(atob(text), character => character.charCodeAt(0));

function textOf(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}

// Returns the outputs of a model and the milliseconds of each run, or the error. job: {model, feeds, options, runs}, the bytes
// of tensors and of the model in base64.
export async function run(ort, { model, feeds, options, runs }) {
  try {
    const session = await ort.InferenceSession.create(bytesOf(model), options);
    const tensors = Object.entries(feeds).map(([name, { type, data, dims }]) =>
      [name, new ort.Tensor(type, new ARRAYS[type](bytesOf(data).buffer), dims)]);
    const times = [];
    let results;
    for (let i = 0; i < runs; i++) {
      const start = performance.now();
      results = await session.run(Object.fromEntries(tensors));
      times.push(performance.now() - start);
    }
    await session.release();
    const outputs = Object.entries(results).map(([name, { type, data, dims }]) => [name, { type, dims, data: textOf(data) }]);
    return { outputs: Object.fromEntries(outputs), times };
  } catch (error) {
    return { error: String(error.message ?? error) };
  }
}
