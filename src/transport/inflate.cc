#include "transport/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace arlo::transport {
namespace {

constexpr int kWindow = 15;  // bits, the most there are
constexpr int kGzip = 16;    // added to them
constexpr std::size_t kPiece = 16 << 10;

class Inflater {
 public:
  explicit Inflater(int window_bits) : good_(inflateInit2(&stream_, window_bits) == Z_OK) {}
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
    for (;;) {
      const std::size_t before = out->size();
      // One byte more than allowed tells whether there is more.
      const std::size_t room = std::min(std::max(kPiece, before), most_bytes + 1 - before);
      out->resize(before + room);
      stream_.next_out = reinterpret_cast<Bytef*>(out->data() + before);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      out->resize(out->size() - stream_.avail_out);
      if (out->size() > most_bytes) return Opened::kTooLarge;
      if (result == Z_STREAM_END) return stream_.avail_in == 0 ? Opened::kOk : Opened::kMalformed;
      if (result != Z_OK || (stream_.avail_in == 0 && stream_.avail_out > 0)) return Opened::kMalformed;
    }
  }

 private:
  z_stream stream_{};
  bool good_;
};

}  // namespace

Opened open(std::string_view encoding, std::string_view message, std::size_t most_bytes, std::string* out) {
  most_bytes = std::min<std::size_t>(most_bytes, std::numeric_limits<std::int32_t>::max());
  if (encoding == "gzip") return Inflater(kWindow + kGzip).run(message, most_bytes, out);
  if (encoding == "deflate") return Inflater(kWindow).run(message, most_bytes, out);
  return Opened::kUnknownEncoding;
}

}  // namespace arlo::transport
