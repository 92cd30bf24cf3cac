// HTTP/1.1: the heads of requests, and answers. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace arlo::gateway {

inline constexpr std::size_t kLongestHead = 8192;  // bytes of a request's line and headers

struct HttpRequest {
  std::string_view method;
  std::string_view path;        // without what follows a '?', and without the host of an absolute target
  std::string_view query = {};  // what follows it
  std::size_t size = 0;         // bytes of the head, up to and with the empty line
  bool good = false;            // its first line is one of HTTP/1
  bool old = false;             // HTTP/1.0
  bool closes = false;          // of that, what the client says: by its version, or in so many words
  std::uint64_t body = 0;       // bytes that follow the head
  bool framed = true;           // that is said, and said once: whoever reads it otherwise would see other requests
  bool addressed = false;       // one Host that can be a host's name; HTTP/1.0 may have none
  bool chunked = false;         // the body comes in pieces that say how long they are
  std::vector<std::pair<std::string_view, std::string_view>> headers;

  // The first one of this name, in lower case; empty for none.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

// As RFC 9110 has the names of headers, and no bytes of a value in which somebody else may see the end of a line.
bool is_token(std::string_view text);
bool is_plain(std::string_view text);
std::string_view trimmed(std::string_view text);
// %41 for A, as clients write names and values.
std::string opened(std::string_view part);

// Bytes of the empty lines at the start, which some clients send behind a body: they are no part of a request.
std::size_t empty_lines(std::string_view bytes);

// The path that a head begins to ask for, as far as it has come: what errors before the whole head are about.
std::string_view target_of(std::string_view bytes);

// The request at the start of `bytes`; none while its head is not there as a whole.
std::optional<HttpRequest> read_request(std::string_view bytes);

// A body that comes in pieces, put together.
class ChunkedBody {
 public:
  enum class State : std::uint8_t { kMore, kDone, kWrong, kTooLarge };
  // `most`: bytes of all pieces.
  explicit ChunkedBody(std::size_t most = 0) : most_(most) {}
  // Takes what it can from the start of `bytes`, and says how much that was.
  State feed(std::string_view bytes, std::size_t* taken);
  [[nodiscard]] std::string& body() { return body_; }
  [[nodiscard]] std::size_t held() const { return body_.capacity(); }

 private:
  enum class At : std::uint8_t { kSize, kPiece, kPieceEnd, kTrailers };

  std::size_t most_;
  At at_ = At::kSize;
  std::size_t left_ = 0;      // of the piece
  std::size_t trailers_ = 0;  // bytes
  std::string body_;
};

struct HttpAnswer {
  int status = 200;
  std::string_view type = "text/plain";
  std::string body;
  std::string headers = {};  // further ones, each with its end of line
};

// Whether a client that says this (Accept-Encoding) takes gzip.
bool takes_gzip(std::string_view accepted);

// The bytes of an answer; without its body for HEAD.
std::string write_answer(const HttpAnswer& answer, bool head_only, bool last);

}  // namespace arlo::gateway
