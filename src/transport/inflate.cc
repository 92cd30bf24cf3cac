#include "transport/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "base/ascii.h"

namespace arlo::transport {
namespace {

constexpr int kWindow = 15;  // bits, the maximum
constexpr int kGzip = 16;    // added to them
constexpr std::size_t kPiece = 16 << 10;

class Inflater {
 public:
  // `members`: several may follow each other (RFC 1952, 2.2).
  Inflater(int window_bits, bool members) : members_(members), good_(inflateInit2(&stream_, window_bits) == Z_OK) {}
  ~Inflater() {
    if (good_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  Opened run(std::string_view message, std::size_t most_bytes, std::string* out) {
    if (!good_ || message.size() > std::numeric_limits<uInt>::max()) return Opened::kMalformed;
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(message.data()));
    stream_.avail_in = static_cast<uInt>(message.size());
    out->clear();
    std::size_t used = 0;
    for (;;) {
      // One byte over the limit shows that there is more. Room grows only when it is used up, so empty members cost
      // nothing.
      if (used == out->size()) out->resize(used + std::min(std::max(kPiece, used), most_bytes + 1 - used));
      stream_.next_out = reinterpret_cast<Bytef*>(out->data() + used);
      stream_.avail_out = static_cast<uInt>(out->size() - used);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      used = out->size() - stream_.avail_out;
      if (used > most_bytes) return Opened::kTooLarge;
      if (result == Z_STREAM_END) {
        if (stream_.avail_in == 0) {
          out->resize(used);
          return Opened::kOk;
        }
        if (!members_ || inflateReset(&stream_) != Z_OK) return Opened::kMalformed;
        continue;
      }
      if (result != Z_OK || (stream_.avail_in == 0 && stream_.avail_out > 0)) return Opened::kMalformed;
    }
  }

 private:
  z_stream stream_{};
  const bool members_;
  bool good_;
};

}  // namespace

Opened open(std::string_view encoding, std::string_view message, std::size_t most_bytes, std::string* out) {
  most_bytes = std::min<std::size_t>(most_bytes, std::numeric_limits<std::int32_t>::max());
  const bool gzip = equal_ignoring_case(encoding, "gzip") || equal_ignoring_case(encoding, "x-gzip");
  if (!gzip && !equal_ignoring_case(encoding, "deflate")) return Opened::kUnknownEncoding;
  const Opened result = Inflater(gzip ? kWindow + kGzip : kWindow, gzip).run(message, most_bytes, out);
  // Freeing a bomb's memory takes time as well, so the thread that opened it does that.
  if (result != Opened::kOk) std::string().swap(*out);
  return result;
}

std::string packed(std::string_view bytes) {
  z_stream stream{};
  constexpr int kFast = 1;
  constexpr int kMemory = 8;
  if (deflateInit2(&stream, kFast, Z_DEFLATED, kWindow + kGzip, kMemory, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool done = bytes.size() <= std::numeric_limits<uInt>::max() && deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(done ? out.size() - stream.avail_out : 0);
  deflateEnd(&stream);
  return out;
}

}  // namespace arlo::transport
