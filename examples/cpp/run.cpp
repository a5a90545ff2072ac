// Runs a model with the library that `quark-numba build-library` writes: run LIBRARY MODEL [THREADS [SIZE [RUNS]]]. Inputs are raw
// float32 values from the standard input, one input after another. Outputs go to the standard output in the same way. SIZE is the
// size of dimensions that the model leaves open. The median latency of the runs goes to the standard error.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

// Returns the input `i`, read from the standard input.
static Ort::Value read_input(const Ort::Session &session, size_t i, int64_t size) {
  Ort::TypeInfo type = session.GetInputTypeInfo(i);
  auto tensor = type.GetTensorTypeAndShapeInfo();
  if (tensor.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) throw std::runtime_error("an input is not float32");
  std::vector<int64_t> shape = tensor.GetShape();
  std::replace(shape.begin(), shape.end(), int64_t(-1), size);
  Ort::AllocatorWithDefaultOptions allocator;
  Ort::Value value = Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size());
  size_t count = value.GetTensorTypeAndShapeInfo().GetElementCount();
  if (fread(value.GetTensorMutableData<float>(), sizeof(float), count, stdin) != count)
    throw std::runtime_error("the standard input has too few values");
  return value;
}

static int run(const std::basic_string<ORTCHAR_T> &library, const std::basic_string<ORTCHAR_T> &model, int threads, int64_t size,
               int runs) {
  Ort::Env env(ORT_LOGGING_LEVEL_FATAL);
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(threads);
  options.AddConfigEntry("session.disable_quant_qdq", "1");  // models with int32 zero points need this
  options.RegisterCustomOpsLibrary(library.c_str());         // the one line for the operators
  Ort::Session session(env, model.c_str(), options);

  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<Ort::AllocatedStringPtr> names;
  std::vector<const char *> inputs, outputs;
  std::vector<Ort::Value> values, results;
  for (size_t i = 0; i < session.GetInputCount(); i++) {
    inputs.push_back(names.emplace_back(session.GetInputNameAllocated(i, allocator)).get());
    values.push_back(read_input(session, i, size));
  }
  for (size_t i = 0; i < session.GetOutputCount(); i++)
    outputs.push_back(names.emplace_back(session.GetOutputNameAllocated(i, allocator)).get());

  std::vector<double> times;
  while (runs-- > 0) {
    auto start = std::chrono::steady_clock::now();
    results = session.Run(Ort::RunOptions(), inputs.data(), values.data(), inputs.size(), outputs.data(), outputs.size());
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  fprintf(stderr, "%.3f ms\n", 1e3 * times[times.size() / 2]);

  for (const Ort::Value &each : results) {
    auto tensor = each.GetTensorTypeAndShapeInfo();
    if (tensor.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) throw std::runtime_error("an output is not float32");
    fwrite(each.GetTensorData<float>(), sizeof(float), tensor.GetElementCount(), stdout);
  }
  return 0;
}

int main(int count, char **arguments) {
  int numbers[] = {1, 1, 1};
  for (int i = 3; i < count && i < 6; i++) numbers[i - 3] = atoi(arguments[i]);
  if (count < 3 || count > 6 || numbers[2] < 1) return fprintf(stderr, "expected: run LIBRARY MODEL [THREADS [SIZE [RUNS]]]\n"), 2;
#ifdef _WIN32
  _setmode(_fileno(stdin), _O_BINARY);
  _setmode(_fileno(stdout), _O_BINARY);
#endif
  std::string library = arguments[1], model = arguments[2];
  try {
    return run({library.begin(), library.end()}, {model.begin(), model.end()}, numbers[0], numbers[1], numbers[2]);
  } catch (const std::exception &error) {
    return fprintf(stderr, "%s\n", error.what()), 1;
  }
}
