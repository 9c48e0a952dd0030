#include "tokenizer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "sentencepiece_processor.h"

struct Tokenizer {
  sentencepiece::SentencePieceProcessor processor;
};

Tokenizer* TokenizerLoad(const char* path) {
  auto* tokenizer = new Tokenizer;
  if (tokenizer->processor.Load(path).ok()) return tokenizer;
  delete tokenizer;
  return nullptr;
}

void TokenizerFree(Tokenizer* tokenizer) { delete tokenizer; }

int32_t TokenizerEncode(const Tokenizer* tokenizer, const char* text, int32_t* ids,
                        int32_t capacity) {
  std::vector<int> found;
  tokenizer->processor.Encode(text, &found);
  found.push_back(tokenizer->processor.eos_id());
  std::copy_n(found.begin(), std::min<size_t>(found.size(), std::max(capacity, 0)), ids);
  return static_cast<int32_t>(found.size());
}

int32_t TokenizerDecode(const Tokenizer* tokenizer, const int32_t* ids, int32_t count, char* text,
                        int32_t capacity) {
  std::string found;
  tokenizer->processor.Decode(std::vector<int>(ids, ids + count), &found);
  const auto is_control = [](unsigned char byte) { return byte < 0x20 || byte == 0x7F; };
  std::replace_if(found.begin(), found.end(), is_control, ' ');
  if (capacity > 0) text[found.copy(text, capacity - 1)] = '\0';
  return static_cast<int32_t>(found.size());
}
