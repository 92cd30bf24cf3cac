// Reads HTTP/1.1 request heads, and writes answers. Pure.
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
  std::string_view path;        // without the query, and without the host of an absolute target
  std::string_view query = {};  // after the '?'
  std::size_t size = 0;         // bytes of the head, including the empty line
  bool good = false;            // its first line is valid HTTP/1
  bool old = false;             // HTTP/1.0
  bool closes = false;          // the client closes the connection, by its version or explicitly
  std::uint64_t body = 0;       // bytes after the head
  bool framed = true;           // the length is given exactly once: other readers might otherwise see other requests
  bool addressed = false;       // has exactly one valid Host; HTTP/1.0 may have none
  bool chunked = false;         // the body uses chunked coding
  std::vector<std::pair<std::string_view, std::string_view>> headers;

  // The first header with this lower-case name; empty for none.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

// Whether it is a header name by RFC 9110, and whether a value has no byte that others may read as a line end.
bool is_token(std::string_view text);
bool is_plain(std::string_view text);
std::string_view trimmed(std::string_view text);

// Bytes of the empty lines at the start, which some clients send after a body: they are not part of a request.
std::size_t empty_lines(std::string_view bytes);

// The path of an incomplete head, as far as received, for errors before the head is complete.
std::string_view target_of(std::string_view bytes);

// Reads the request at the start of `bytes`; none while its head is incomplete.
std::optional<HttpRequest> read_request(std::string_view bytes);

// Reassembles a body with chunked coding.
class ChunkedBody {
 public:
  enum class State : std::uint8_t { kMore, kDone, kWrong, kTooLarge };
  // `most`: limit on the bytes of all chunks.
  explicit ChunkedBody(std::size_t most = 0) : most_(most) {}
  // Consumes bytes from the start of `bytes`, and sets how many.
  State feed(std::string_view bytes, std::size_t* taken);
  [[nodiscard]] std::string& body() { return body_; }
  [[nodiscard]] std::size_t held() const { return body_.capacity(); }

 private:
  enum class At : std::uint8_t { kSize, kPiece, kPieceEnd, kTrailers };

  std::size_t most_;
  At at_ = At::kSize;
  std::size_t left_ = 0;      // of the chunk
  std::size_t trailers_ = 0;  // bytes
  std::string body_;
};

struct HttpAnswer {
  std::string body = {};
  std::string_view type = "application/json";
  std::string headers = {};  // further headers, each with its line ending
  int status = 200;
};

// Whether a client with this Accept-Encoding takes gzip.
bool takes_gzip(std::string_view accepted);

// The bytes of an answer; without its body for HEAD.
std::string write_answer(const HttpAnswer& answer, bool head_only, bool last);

}  // namespace arlo::gateway
