package sentencepiece

/** A SentencePiece model, through tokenizer_jni.cc in libtokenizer.so. */
class Tokenizer(path: String) : AutoCloseable {
    private val handle = nativeLoad(path.encodeToByteArray())

    init {
        require(handle != 0L) { "$path is not a SentencePiece model. Copy it again from the export." }
    }

    /** Returns the ids of a text, with the end token. */
    fun encode(text: String): IntArray = nativeEncode(handle, text.encodeToByteArray())

    /** Returns the text of ids. Control characters, such as line breaks, become spaces. */
    fun decode(ids: IntArray): String = nativeDecode(handle, ids).decodeToString()

    /** Frees the memory. No other function may be called afterwards. */
    override fun close() = nativeFree(handle)

    private external fun nativeLoad(path: ByteArray): Long
    private external fun nativeFree(handle: Long)
    private external fun nativeEncode(handle: Long, text: ByteArray): IntArray
    private external fun nativeDecode(handle: Long, ids: IntArray): ByteArray

    private companion object {
        init {
            System.loadLibrary("tokenizer")
        }
    }
}
