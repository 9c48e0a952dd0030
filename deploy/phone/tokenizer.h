// SentencePiece for JNI (tokenizer_jni.cc) and Swift (import this file in the bridging header).

#ifndef KERAS_TRANSFORMER_TOKENIZER_H_
#define KERAS_TRANSFORMER_TOKENIZER_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tokenizer Tokenizer;

// Returns the tokenizer of a .model file, or NULL if the file cannot be read.
Tokenizer* TokenizerLoad(const char* path);
void TokenizerFree(Tokenizer* tokenizer);

// Writes at most `capacity` ids of a text in UTF-8. Returns the number of all ids, with the end
// token.
int32_t TokenizerEncode(const Tokenizer* tokenizer, const char* text, int32_t* ids,
                        int32_t capacity);

// Writes the text of ids in UTF-8, with a final NUL, truncated to `capacity` bytes. Returns the
// number of all bytes before the NUL. Control characters, such as line breaks, become spaces.
int32_t TokenizerDecode(const Tokenizer* tokenizer, const int32_t* ids, int32_t count, char* text,
                        int32_t capacity);

#ifdef __cplusplus
}
#endif

#endif  // KERAS_TRANSFORMER_TOKENIZER_H_
