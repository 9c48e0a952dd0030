// Translates lines of standard input with model.tflite of `bin/export.py --format=litert`.
//
//   translate MODEL.tflite source.model target.model <input.txt
//
// Needs LiteRT's C API (the headers litert/c, and libLiteRt.so, for example from the Python package
// ai-edge-litert) and the SentencePiece library. docs/phone.md has the command that compiles it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "litert/c/litert_common.h"
#include "litert/c/litert_compiled_model.h"
#include "litert/c/litert_environment.h"
#include "litert/c/litert_model.h"
#include "litert/c/litert_opaque_options.h"
#include "litert/c/litert_options.h"
#include "litert/c/litert_tensor_buffer.h"
#include "sentencepiece_processor.h"

namespace {

void Check(LiteRtStatus status, const char* action) {
  if (status != kLiteRtStatusOk) {
    throw std::runtime_error(std::string("LiteRT cannot ") + action + " (status " +
                             std::to_string(status) + ").");
  }
}

uint32_t LittleEndian(const unsigned char* bytes) {
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

// Refuses a truncated file. A complete one ends with the last record of a ZIP archive, which has
// the place and the size of the list of files before it. Changed bytes are not noticed: compare
// the SHA-256 with manifest.json for that.
void CheckComplete(const std::string& path) {
  constexpr int kRecordSize = 22;
  unsigned char record[kRecordSize];
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error(path + " cannot be read.");
  const std::streamoff begin = static_cast<std::streamoff>(file.tellg()) - kRecordSize;
  const bool is_complete = begin >= 0 && file.seekg(begin) &&
                           file.read(reinterpret_cast<char*>(record), kRecordSize) &&
                           std::memcmp(record, "PK\5\6", 4) == 0 &&
                           std::streamoff{LittleEndian(record + 12)} +
                                   std::streamoff{LittleEndian(record + 16)} == begin;
  if (!is_complete) throw std::runtime_error(path + " is cut off or damaged. Copy it again.");
}

void LoadVocabulary(const char* path, sentencepiece::SentencePieceProcessor& vocabulary) {
  if (!vocabulary.Load(path).ok()) {
    throw std::runtime_error(std::string("The vocabulary ") + path + " cannot be read.");
  }
}

// Returns options for the CPU. XNNPACK packs the weights, and a cache in memory lets LiteRT release
// the file's weights. libLiteRt.so does not export LrtSetCpuOptionsXnnPackWeightCachePath, so this
// makes the text that the function makes.
LiteRtOptions CreateOptions() {
  static char cpu[] = "weight_cache_file_path = \":memory\"\n";
  LiteRtOptions options;
  LiteRtOpaqueOptions cpu_options;
  Check(LiteRtCreateOptions(&options), "create options");
  Check(LiteRtSetOptionsHardwareAccelerators(options, kLiteRtHwAcceleratorCpu), "use the CPU");
  Check(LiteRtCreateOpaqueOptions("xnnpack", cpu, [](void*) {}, &cpu_options), "create options");
  Check(LiteRtAddOpaqueOptions(options, cpu_options), "set options");
  return options;
}

// The first signature of the model, translate_ids, with its buffers. All shapes are constant.
class Translator {
 public:
  explicit Translator(const char* path) {
    Check(LiteRtCreateEnvironment(0, nullptr, &environment_), "start");
    Check(LiteRtCreateModelFromFile(environment_, path, &model_), "read the model");
    LiteRtOptions options = CreateOptions();
    Check(LiteRtCreateCompiledModel(environment_, model_, options, &compiled_),
          "compile the model");
    LiteRtDestroyOptions(options);

    LiteRtSignature signature;
    Check(LiteRtGetModelSignature(model_, kSignature, &signature), "find the signature");
    LiteRtParamIndex count;
    Check(LiteRtGetNumSignatureInputs(signature, &count), "count the inputs");
    for (LiteRtParamIndex i = 0; i < count; ++i) {
      const char* name;
      LiteRtTensor tensor;
      LiteRtTensorBufferRequirements needs;
      Check(LiteRtGetSignatureInputName(signature, i, &name), "name an input");
      Check(LiteRtGetSignatureInputTensorByIndex(signature, i, &tensor), "find an input");
      Check(LiteRtGetCompiledModelInputBufferRequirements(compiled_, kSignature, i, &needs),
            "size an input");
      AddBuffer(name, tensor, needs, inputs_, input_index_);
    }
    Check(LiteRtGetNumSignatureOutputs(signature, &count), "count the outputs");
    for (LiteRtParamIndex i = 0; i < count; ++i) {
      const char* name;
      LiteRtTensor tensor;
      LiteRtTensorBufferRequirements needs;
      Check(LiteRtGetSignatureOutputName(signature, i, &name), "name an output");
      Check(LiteRtGetSignatureOutputTensorByIndex(signature, i, &tensor), "find an output");
      Check(LiteRtGetCompiledModelOutputBufferRequirements(compiled_, kSignature, i, &needs),
            "size an output");
      AddBuffer(name, tensor, needs, outputs_, output_index_);
    }
    Write<int32_t>("max_length", {0});                // 0: as exported
    Write<float>("length_penalty", {std::nanf("")});  // NaN: as exported
  }

  ~Translator() {
    for (LiteRtTensorBuffer buffer : inputs_) LiteRtDestroyTensorBuffer(buffer);
    for (LiteRtTensorBuffer buffer : outputs_) LiteRtDestroyTensorBuffer(buffer);
    if (compiled_) LiteRtDestroyCompiledModel(compiled_);
    if (model_) LiteRtDestroyModel(model_);
    if (environment_) LiteRtDestroyEnvironment(environment_);
  }
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  // Returns the ids of the best translation. The source ids end with the end token.
  std::vector<int32_t> Translate(std::vector<int32_t> ids) {
    const size_t limit = Size(inputs_[input_index_.at("ids")]) / sizeof(int32_t);
    const int32_t length = static_cast<int32_t>(std::min(ids.size(), limit));
    ids.resize(limit);
    Write<int32_t>("ids", ids);
    Write<int32_t>("lengths", {length});
    Check(LiteRtRunCompiledModel(compiled_, kSignature, inputs_.size(), inputs_.data(),
                                 outputs_.size(), outputs_.data()),
          "run the model");
    std::vector<int32_t> found = Read("ids");
    found.resize(Read("lengths").front());
    return found;
  }

 private:
  static constexpr LiteRtParamIndex kSignature = 0;

  void AddBuffer(const char* name, LiteRtTensor tensor, LiteRtTensorBufferRequirements needs,
                 std::vector<LiteRtTensorBuffer>& buffers, std::map<std::string, size_t>& index) {
    LiteRtRankedTensorType type;
    LiteRtTensorBuffer buffer;
    Check(LiteRtGetRankedTensorType(tensor, &type), "read a type");
    Check(LiteRtCreateManagedTensorBufferFromRequirements(environment_, &type, needs, &buffer),
          "allocate a buffer");
    index[name] = buffers.size();
    buffers.push_back(buffer);
  }

  static size_t Size(LiteRtTensorBuffer buffer) {
    size_t bytes;
    Check(LiteRtGetTensorBufferPackedSize(buffer, &bytes), "size a buffer");
    return bytes;
  }

  template <typename T>
  void Write(const std::string& name, const std::vector<T>& values) {
    LiteRtTensorBuffer buffer = inputs_[input_index_.at(name)];
    void* memory;
    Check(LiteRtLockTensorBuffer(buffer, &memory, kLiteRtTensorBufferLockModeWrite), "write");
    std::memcpy(memory, values.data(), values.size() * sizeof(T));
    Check(LiteRtUnlockTensorBuffer(buffer), "write");
  }

  std::vector<int32_t> Read(const std::string& name) {
    LiteRtTensorBuffer buffer = outputs_[output_index_.at(name)];
    std::vector<int32_t> values(Size(buffer) / sizeof(int32_t));
    void* memory;
    Check(LiteRtLockTensorBuffer(buffer, &memory, kLiteRtTensorBufferLockModeRead), "read");
    std::memcpy(values.data(), memory, values.size() * sizeof(int32_t));
    Check(LiteRtUnlockTensorBuffer(buffer), "read");
    return values;
  }

  LiteRtEnvironment environment_ = nullptr;
  LiteRtModel model_ = nullptr;
  LiteRtCompiledModel compiled_ = nullptr;
  std::vector<LiteRtTensorBuffer> inputs_, outputs_;
  std::map<std::string, size_t> input_index_, output_index_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: translate MODEL.tflite SOURCE.model TARGET.model <input.txt\n";
    return 1;
  }
  try {
    sentencepiece::SentencePieceProcessor source, target;
    CheckComplete(argv[1]);
    LoadVocabulary(argv[2], source);
    LoadVocabulary(argv[3], target);
    Translator translator(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::vector<int> ids;
      source.Encode(line, &ids);
      ids.push_back(source.eos_id());
      std::string translation;
      target.Decode(translator.Translate(ids), &translation);
      std::cout << translation << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
