// Translates lines of standard input with model.tflite of `keras-transformer export --format=litert`.
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
#include <utility>
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

constexpr int kTruncated = 1, kNotTranslated = 32;  // bits of the output `status`

void Check(LiteRtStatus status, const char* action) {
  if (status != kLiteRtStatusOk) {
    throw std::runtime_error(std::string("LiteRT cannot ") + action + " (status " +
                             std::to_string(status) + ").");
  }
}

// Returns an unsigned number of 2 or 4 bytes in a ZIP archive.
uint32_t Number(const std::string& bytes, size_t place, int size) {
  uint32_t number = 0;
  for (int i = size - 1; i >= 0; --i) {
    number = number << 8 | static_cast<unsigned char>(bytes.at(place + i));
  }
  return number;
}

std::string ReadBytes(std::istream& file, size_t place, size_t size) {
  std::string bytes(size, '\0');
  file.seekg(place).read(bytes.data(), size);
  if (!file) throw std::out_of_range("the file ends too early");
  return bytes;
}

uint32_t Crc32(std::istream& file, size_t size) {
  uint32_t table[256];
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320 : 0);
  }
  constexpr size_t kBlockSize = 1 << 16;
  uint32_t checksum = ~0u;
  for (size_t place = 0; place < size; place += kBlockSize) {
    for (unsigned char byte : ReadBytes(file, place, std::min(kBlockSize, size - place))) {
      checksum = table[(checksum ^ byte) & 0xFF] ^ checksum >> 8;
    }
  }
  return ~checksum;
}

// The ZIP archive at the end of the model: the checksums of the model and of the vocabularies.
struct Archive {
  uint32_t model_size, model_checksum;
  std::map<std::string, uint32_t> checksums;  // by file name
};

Archive ReadArchive(std::istream& file) {
  constexpr int kEndSize = 22, kEntrySize = 46, kHeaderSize = 30;
  file.seekg(0, std::ios::end);
  const size_t end_place = static_cast<size_t>(file.tellg()) - kEndSize;
  const std::string end = ReadBytes(file, end_place, kEndSize);
  const size_t size = Number(end, 12, 4), begin = Number(end, 16, 4);
  if (end.compare(0, 4, "PK\5\6") != 0 || begin + size != end_place) {
    throw std::out_of_range("the file does not end with an archive");
  }
  Archive archive;
  const std::string list = ReadBytes(file, begin, size);
  for (size_t i = 0; i < list.size();) {
    const size_t name_size = Number(list, i + 28, 2), place = Number(list, i + 42, 4);
    const std::string name = list.substr(i + kEntrySize, name_size);
    archive.checksums[name] = Number(list, i + 16, 4);
    if (name == "model.json") {  // it is the first file, and is not compressed
      const std::string header = ReadBytes(file, place, kHeaderSize);
      const size_t skipped = kHeaderSize + Number(header, 26, 2) + Number(header, 28, 2);
      const std::string text = ReadBytes(file, place + skipped, Number(list, i + 24, 4));
      const std::string key = "\"model_crc32\": ";
      archive.model_size = place;
      archive.model_checksum = std::stoul(text.substr(text.find(key) + key.size()));
    }
    i += kEntrySize + name_size + Number(list, i + 30, 2) + Number(list, i + 32, 2);
  }
  archive.checksums.at("model.json");
  return archive;
}

// Refuses a model that is cut off or was changed, and vocabularies that are not those in it.
void CheckFiles(const std::string& model, const std::string& source, const std::string& target) {
  std::ifstream file(model, std::ios::binary);
  if (!file) throw std::runtime_error(model + " cannot be read.");
  Archive archive;
  bool is_same = false;
  try {
    archive = ReadArchive(file);
    is_same = Crc32(file, archive.model_size) == archive.model_checksum;
  } catch (const std::logic_error&) {  // out_of_range and invalid_argument
  }
  if (!is_same) throw std::runtime_error(model + " is cut off or damaged. Copy it again.");
  for (const auto& [path, name] : {std::pair(source, "source.model"), {target, "target.model"}}) {
    std::ifstream vocabulary(path, std::ios::binary | std::ios::ate);
    if (!vocabulary) throw std::runtime_error("The vocabulary " + path + " cannot be read.");
    const bool is_joint = archive.checksums.count("joint.model") > 0;
    if (Crc32(vocabulary, vocabulary.tellg()) !=
        archive.checksums.at(is_joint ? "joint.model" : name)) {
      throw std::runtime_error("The vocabulary " + path + " is damaged, or is not the one of " +
                               model + ". Copy both again.");
    }
  }
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

  // Returns the ids of the best translation and its status. The source ids end with the end token.
  std::pair<std::vector<int32_t>, int32_t> Translate(std::vector<int32_t> ids) {
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
    return {found, Read("status").front()};
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
    CheckFiles(argv[1], argv[2], argv[3]);
    LoadVocabulary(argv[2], source);
    LoadVocabulary(argv[3], target);
    Translator translator(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::vector<int> ids;
      source.Encode(line, &ids);
      ids.push_back(source.eos_id());
      const auto [found, status] = translator.Translate(ids);
      std::string translation;
      target.Decode(found, &translation);
      // Tokens of single bytes may be line breaks.
      const auto is_control = [](unsigned char byte) { return byte < 0x20 || byte == 0x7F; };
      std::replace_if(translation.begin(), translation.end(), is_control, ' ');
      std::cout << translation << std::endl;
      if (status & kTruncated) std::cerr << "A line is too long: the rest is not translated.\n";
      if (status & kNotTranslated) std::cerr << "A line has no translation.\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
