// The functions of Tokenizer.kt. Text is UTF-8 in byte arrays, because strings of JNI write
// characters such as emoji differently.

#include <jni.h>

#include <string>
#include <vector>

#include "tokenizer.h"

namespace {

const Tokenizer* FromHandle(jlong handle) { return reinterpret_cast<const Tokenizer*>(handle); }

std::string ToString(JNIEnv* env, jbyteArray bytes) {
  std::string text(env->GetArrayLength(bytes), '\0');
  env->GetByteArrayRegion(bytes, 0, text.size(), reinterpret_cast<jbyte*>(text.data()));
  return text;
}

}  // namespace

extern "C" {

JNIEXPORT jlong JNICALL Java_sentencepiece_Tokenizer_nativeLoad(JNIEnv* env, jobject,
                                                                jbyteArray path) {
  return reinterpret_cast<jlong>(TokenizerLoad(ToString(env, path).c_str()));
}

JNIEXPORT void JNICALL Java_sentencepiece_Tokenizer_nativeFree(JNIEnv*, jobject, jlong handle) {
  TokenizerFree(reinterpret_cast<Tokenizer*>(handle));
}

JNIEXPORT jintArray JNICALL Java_sentencepiece_Tokenizer_nativeEncode(JNIEnv* env, jobject,
                                                                      jlong handle,
                                                                      jbyteArray text) {
  const std::string utf8 = ToString(env, text);
  std::vector<jint> ids(TokenizerEncode(FromHandle(handle), utf8.c_str(), nullptr, 0));
  TokenizerEncode(FromHandle(handle), utf8.c_str(), ids.data(), ids.size());
  jintArray result = env->NewIntArray(ids.size());
  if (result) env->SetIntArrayRegion(result, 0, ids.size(), ids.data());
  return result;
}

JNIEXPORT jbyteArray JNICALL Java_sentencepiece_Tokenizer_nativeDecode(JNIEnv* env, jobject,
                                                                       jlong handle,
                                                                       jintArray ids) {
  std::vector<jint> found(env->GetArrayLength(ids));
  env->GetIntArrayRegion(ids, 0, found.size(), found.data());
  std::vector<char> text(
      TokenizerDecode(FromHandle(handle), found.data(), found.size(), nullptr, 0) + 1);
  TokenizerDecode(FromHandle(handle), found.data(), found.size(), text.data(), text.size());
  jbyteArray result = env->NewByteArray(text.size() - 1);
  if (result) {
    env->SetByteArrayRegion(result, 0, text.size() - 1,
                            reinterpret_cast<const jbyte*>(text.data()));
  }
  return result;
}

}  // extern "C"
