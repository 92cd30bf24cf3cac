#include "gateway/front/http/http_message.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/ascii.h"

namespace arlo::gateway {
namespace {

constexpr std::pair<int, std::string_view> kReasons[] = {{200, "OK"},
                                                         {400, "Bad Request"},
                                                         {401, "Unauthorized"},
                                                         {404, "Not Found"},
                                                         {405, "Method Not Allowed"},
                                                         {408, "Request Timeout"},
                                                         {413, "Content Too Large"},
                                                         {415, "Unsupported Media Type"},
                                                         {422, "Unprocessable Content"},
                                                         {424, "Failed Dependency"},
                                                         {429, "Too Many Requests"},
                                                         {431, "Request Header Fields Too Large"},
                                                         {500, "Internal Server Error"},
                                                         {501, "Not Implemented"},
                                                         {504, "Gateway Timeout"}};

std::string_view reason(int status) {
  const auto* const found = std::ranges::find(kReasons, status, [](const auto& each) { return each.first; });
  return found == std::end(kReasons) ? "Service Unavailable" : found->second;
}

// Removes http://host:port from the start of a target. Returns false if it has neither path nor host.
bool cut_host(std::string_view* target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_ignoring_case(target->substr(0, scheme.size()), scheme)) continue;
    target->remove_prefix(scheme.size());
    const auto host = std::min(target->find_first_of("/?"), target->size());
    target->remove_prefix(host);
    if (target->empty()) *target = "/";
    return host != 0;
  }
  return target->starts_with('/') || *target == "*";
}

// Whether it has no byte that ends a host in a URL.
bool is_host(std::string_view text) { return text.find_first_of(" \t/?#@\\") == std::string_view::npos; }

// Whether a comma-separated list contains the word.
bool lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const auto each = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), each.size() + 1));
    if (equal_ignoring_case(trimmed(each), word)) return true;
  }
  return false;
}

}  // namespace

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return c == '\t' || (byte >= ' ' && byte != 0x7f);
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

std::size_t empty_lines(std::string_view bytes) {
  std::size_t size = 0;
  while (bytes.substr(size).starts_with("\r\n")) size += 2;
  return size;
}

std::string_view target_of(std::string_view bytes) {
  bytes.remove_prefix(empty_lines(bytes));
  const auto line = bytes.substr(0, bytes.find("\r\n"));
  auto target = line.substr(std::min(line.size(), line.find(' ')));
  if (!target.empty()) target.remove_prefix(1);
  target = target.substr(0, target.find(' '));
  cut_host(&target);
  return target.substr(0, target.find('?'));
}

std::optional<HttpRequest> read_request(std::string_view bytes) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  const auto begin = empty_lines(bytes);
  const auto end = bytes.find(kEnd, begin);
  if (end == std::string_view::npos) return {};
  HttpRequest request;
  request.size = end + kEnd.size();
  std::string_view head = bytes.substr(begin, end - begin);
  const auto line = head.substr(0, head.find("\r\n"));
  head.remove_prefix(std::min(head.size(), line.size() + 2));
  const auto first = line.find(' ');
  const auto second = line.rfind(' ');
  if (first == std::string_view::npos || second == first) return request;
  const auto version = line.substr(second + 1);
  request.method = line.substr(0, first);
  request.path = line.substr(first + 1, second - first - 1);
  const bool target = cut_host(&request.path);
  if (const auto mark = request.path.find('?'); mark != std::string_view::npos) {
    request.query = request.path.substr(mark + 1);
    request.path = request.path.substr(0, mark);
    if (request.path.empty()) request.path = "/";  // after a host
  }
  request.good = (version == "HTTP/1.1" || version == "HTTP/1.0") && target && is_plain(line);
  request.old = version != "HTTP/1.1";
  request.closes = request.old;
  bool counted = false;
  int hosts = 0;
  while (!head.empty()) {
    const auto header = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), header.size() + 2));
    const auto colon = header.find(':');
    if (colon == std::string_view::npos) {
      request.framed = false;
      continue;
    }
    const auto name = header.substr(0, colon);
    const auto value = trimmed(header.substr(colon + 1));
    request.headers.emplace_back(name, value);
    if (!is_token(name) || !is_plain(value)) request.framed = false;
    if (equal_ignoring_case(name, "connection") && lists(value, "close")) request.closes = true;
    if (equal_ignoring_case(name, "host")) hosts += is_host(value) ? 1 : 2;
    if (equal_ignoring_case(name, "transfer-encoding")) {
      if (std::exchange(request.chunked, true)) request.framed = false;  // repeated headers: the second may differ
    }
    if (equal_ignoring_case(name, "content-length")) {
      if (std::exchange(counted, true) || !read_number(value, &request.body)) request.framed = false;
    }
  }
  if (request.chunked && (counted || version == "HTTP/1.0")) request.framed = false;
  request.addressed = hosts == 1 || (hosts == 0 && request.old);
  return request;
}

ChunkedBody::State ChunkedBody::feed(std::string_view bytes, std::size_t* taken) {
  constexpr std::size_t kLongestLine = 256;  // including extensions, which are ignored
  *taken = 0;
  const auto take = [&](std::size_t count) {
    bytes.remove_prefix(count);
    *taken += count;
  };
  for (;;) {
    if (at_ == At::kPiece) {
      const auto count = std::min(left_, bytes.size());
      body_.append(bytes.substr(0, count));
      take(count);
      left_ -= count;
      if (left_ != 0) return State::kMore;
      at_ = At::kPieceEnd;
    }
    if (at_ == At::kPieceEnd) {
      if (bytes.size() < 2) return bytes.empty() || bytes[0] == '\r' ? State::kMore : State::kWrong;
      if (!bytes.starts_with("\r\n")) return State::kWrong;
      take(2);
      at_ = At::kSize;
    }
    const auto end = bytes.find("\r\n");
    if (end == std::string_view::npos) return bytes.size() > kLongestLine ? State::kWrong : State::kMore;
    if (end > kLongestLine) return State::kWrong;
    const auto line = bytes.substr(0, end);
    take(end + 2);
    if (at_ == At::kTrailers) {
      if (line.empty()) return State::kDone;
      trailers_ += line.size();
      if (trailers_ > kLongestHead) return State::kWrong;
      continue;
    }
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), left_, 16);
    const auto rest = trimmed(line.substr(static_cast<std::size_t>(stop - line.data())));
    if (error != std::errc() || (!rest.empty() && rest.front() != ';') || !is_plain(rest)) {
      return error == std::errc::result_out_of_range ? State::kTooLarge : State::kWrong;
    }
    if (left_ > most_ - body_.size()) return State::kTooLarge;
    at_ = left_ == 0 ? At::kTrailers : At::kPiece;
  }
}

bool takes_gzip(std::string_view accepted) {
  while (!accepted.empty()) {
    const auto each = accepted.substr(0, accepted.find(','));
    accepted.remove_prefix(std::min(accepted.size(), each.size() + 1));
    const auto name = trimmed(each.substr(0, each.find(';')));
    if (!equal_ignoring_case(name, "gzip") && !equal_ignoring_case(name, "x-gzip")) continue;
    const auto weight = each.find("q=");
    // A weight of 0, 0.0 or 0.000 rejects the coding.
    return weight == std::string_view::npos ||
           trimmed(each.substr(weight + 2)).find_first_not_of("0.") != std::string_view::npos;
  }
  return false;
}

std::string write_answer(const HttpAnswer& answer, bool head_only, bool last) {
  std::string out = "HTTP/1.1 " + std::to_string(answer.status) + " ";
  out.append(reason(answer.status)).append("\r\nContent-Type: ").append(answer.type);
  out.append("\r\nContent-Length: ").append(std::to_string(answer.body.size()));
  if (last) out.append("\r\nConnection: close");
  out.append("\r\n").append(answer.headers).append("\r\n");
  if (!head_only) out.append(answer.body);
  return out;
}

}  // namespace arlo::gateway
