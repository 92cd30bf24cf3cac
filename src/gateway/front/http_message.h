// The little of HTTP/1.1 that probes and scrapes need. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace arlo::gateway {

inline constexpr std::size_t kLongestHead = 8192;  // bytes of a request's line and headers

struct HttpRequest {
  std::string_view method;
  std::string_view path;  // without what follows a '?'
  std::size_t size = 0;   // bytes of the head, up to and with the empty line
  bool good = false;      // its first line is one of HTTP/1
  bool last = false;      // the connection closes after the answer: asked for, or a body follows, which is not read
};

// The request at the start of `bytes`; none while its head is not there as a whole.
std::optional<HttpRequest> read_request(std::string_view bytes);

struct HttpAnswer {
  int status = 200;
  std::string_view type = "text/plain";
  std::string body;
};

// The bytes of an answer; without its body for HEAD.
std::string write_answer(const HttpAnswer& answer, bool head_only, bool last);

}  // namespace arlo::gateway
