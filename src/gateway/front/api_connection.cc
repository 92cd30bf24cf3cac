#include "gateway/front/api_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "gateway/front/encode.h"
#include "gateway/front/infer_call.h"
#include "gateway/log.h"
#include "transport/address.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kRead = 16 << 10;
constexpr std::size_t kAhead = 16 << 10;      // bytes that are read of requests behind the one that is answered
constexpr TimeNs kLastWords = 1'000'000'000;  // for a client to close
constexpr std::size_t kLongestId = 128;
constexpr const char* kJson = "application/json";

std::string peer_of(int fd) {
  transport::SocketAddress address;
  address.size = sizeof address.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return "unknown";
  return address.text();
}

// The client's, where it is fit for a header and a log; or one of ours.
std::string request_id_of(std::string_view given) {
  const bool good = !given.empty() && given.size() <= kLongestId &&
                    std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (good) return std::string(given);
  static const auto kSalt = std::random_device{}();
  static std::atomic<std::uint64_t> count{0};
  return "req-" + std::to_string(kSalt) + "-" + std::to_string(count.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

ApiConnection::ApiConnection(ApiConnections& all, DataService& service, Lane& lane, int fd)
    : all_(all), service_(service), lane_(lane), peer_(peer_of(fd)), stream_(fd, nullptr) {
  yields = true;
  watched_ = EPOLLIN;
  lane_.loop().watch(fd, EPOLLIN, *this);
  wait(State::kHead, all_.limits().idle_time);
}

ApiConnection::~ApiConnection() {
  if (handler_ != nullptr) handler_->closed(finished_);
  all_.held -= held_;
  lane_.loop().clear(*this);
  lane_.loop().forget(stream_.fd(), *this);
}

std::string_view ApiConnection::header(std::string_view name) const {
  for (const auto& header : headers_) {
    if (equal_ignoring_case(header.name, name)) return header.value;
  }
  return {};
}

void ApiConnection::wait(State state, TimeNs time) {
  state_ = state;
  lane_.loop().set(*this, time == kNever ? kNever : now_ns() + time);
}

void ApiConnection::account() {
  const std::size_t now = in_.capacity() + out_.capacity() + called_;
  all_.held += now - held_;
  held_ = now;
}

void ApiConnection::due() {
  if (state_ == State::kBusy) return;
  if (!idle() && state_ != State::kClosing) service_.usage().over_limit("time of a request");
  if (state_ == State::kBody || (state_ == State::kHead && !in_.empty())) {
    refuse_and_close(408, "the request took too long");
    if (!broken_) {
      watch();
      return;
    }
  }
  all_.close(*this);
}

void ApiConnection::ready(std::uint32_t events) {
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) broken_ = true;
  if (!broken_ && (events & EPOLLIN) != 0) read();
  if (!broken_ && (events & EPOLLOUT) != 0) write();
  if (broken_) {
    all_.close(*this);
    return;
  }
  watch();
}

// After the events of the turn in which the call has its answer, or the answer before was sent.
void ApiConnection::turn_ends() {
  if (finished_) {
    auto handler = std::move(handler_);
    handler->closed(true);
    handler.reset();
    finished_ = false;
    called_ = 0;
    std::string body;
    if (fault_.code == Code::kOk) {
      if (auto fault = write_embeddings(asked_, *model_, answer_, &body)) fault_ = *fault;
    }
    answer_.clear();
    if (fault_.code == Code::kOk) {
      answer(200, std::move(body));
    } else {
      refuse(fault_);
    }
    asked_ = {};
    model_.reset();
  }
  go_on();
  if (broken_) {
    all_.close(*this);
    return;
  }
  watch();
}

void ApiConnection::read() {
  std::array<char, kRead> bytes;
  const long count = stream_.read(bytes.data(), bytes.size());
  if (count == transport::ByteStream::kBlocked) return;
  if (count <= 0) {
    broken_ = true;  // whoever has gone, or says no more, wants no answer
    return;
  }
  if (state_ == State::kClosing) return;
  in_.append(bytes.data(), static_cast<std::size_t>(count));
  account();
  if (all_.held > all_.limits().memory && state_ != State::kBusy && state_ != State::kSending) {
    service_.usage().over_limit("bytes of requests and answers");
    refuse_and_close(503, "the gateway holds as much of requests as it may: try again a little later");
    return;
  }
  go_on();
}

void ApiConnection::go_on() {
  if (broken_) return;
  if (state_ == State::kHead && !in_.empty()) {
    if (!std::exchange(timed_, true)) wait(State::kHead, all_.limits().head_time);
    if (!take_head()) return;
  }
  if (state_ != State::kBody || in_.size() - head_ < body_) return;
  timed_ = false;
  yields = false;
  wait(State::kBusy, kNever);
  const auto body = in_.substr(head_, body_);
  in_.erase(0, head_ + body_);
  if (in_.empty()) in_.shrink_to_fit();
  account();
  serve(body);
}

// False: it is not there yet, or no head.
bool ApiConnection::take_head() {
  const auto head = read_request(in_);
  if (!head || head->size > all_.limits().head_bytes) {
    if (in_.size() <= all_.limits().head_bytes) return false;
    service_.usage().over_limit("bytes of headers");
    refuse_and_close(431, "the headers are too large");
    return false;
  }
  method_ = head->method;
  path_ = head->path;
  head_only_ = head->method == "HEAD";
  headers_.clear();
  for (const auto& [name, value] : head->headers) headers_.push_back({std::string(name), std::string(value)});
  request_id_ = request_id_of(head->header("x-request-id"));
  if (!head->good || !head->framed) {
    refuse_and_close(400, "this is no request of HTTP/1.1");
    return false;
  }
  if (head->chunked) {
    refuse_and_close(411, "send the length of the body: Content-Length instead of Transfer-Encoding");
    return false;
  }
  if (head->body > all_.limits().body_bytes) {
    refuse_and_close(413, "the body is larger than the gateway takes: send fewer texts at a time");
    return false;
  }
  last_ = last_ || head->closes;
  head_ = head->size;
  body_ = head->body;
  if (equal_ignoring_case(head->header("expect"), "100-continue") && in_.size() == head_ && body_ != 0) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    if (stream_.write(kContinue.data(), kContinue.size()) != static_cast<long>(kContinue.size())) broken_ = true;
  }
  wait(State::kBody, all_.limits().body_time);
  return true;
}

void ApiConnection::serve(std::string_view body) {
  const bool get = method_ == "GET" || method_ == "HEAD";
  if (path_ == "/health" || path_ == "/v1/health/ready") {
    const bool ready = service_.models().ready();
    answer(ready ? 200 : 503, ready ? "{\"status\":\"ready\"}" : "{\"status\":\"not ready\"}");
    return;
  }
  const bool tei = path_ == "/embed";
  asked_ = {};
  asked_.dialect = tei ? Dialect::kTei : Dialect::kOpenAi;
  if (const auto fault = service_.authorize(*this)) {
    refuse(*fault);
  } else if (path_ == "/v1/models" && get) {
    list_models();
  } else if (!tei && path_ != "/v1/embeddings" && path_ != "/embeddings") {
    const bool known = path_ == "/v1/models";
    answer(
        known ? 405 : 404,
        write_fault(asked_.dialect, known ? Fault{Code::kInvalidArgument, "GET only"}
                                          : Fault{Code::kNotFound, "there is no such path; see POST /v1/embeddings"}));
  } else if (method_ != "POST") {
    answer(405, write_fault(asked_.dialect, {Code::kInvalidArgument, "POST only"}), "Allow: POST\r\n");
  } else {
    embeddings(body);
  }
}

void ApiConnection::list_models() {
  auto data = nlohmann::json::array();
  for (const auto& served : service_.models().served()) {
    if (served.stage) continue;
    data.push_back({{"id", served.name}, {"object", "model"}, {"created", 0}, {"owned_by", "arlo"}});
  }
  const auto all = nlohmann::json::object({{"object", "list"}, {"data", data}});
  answer(200, all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void ApiConnection::embeddings(std::string_view body) {
  if (const auto fault = read_embeddings(asked_.dialect, body, &asked_)) return refuse(*fault);
  if (asked_.model.empty()) {
    std::vector<std::string> names;
    for (const auto& served : service_.models().served()) {
      if (!served.stage) names.push_back(served.name);
    }
    if (names.size() > 1) {
      return refuse({Code::kInvalidArgument, "name a model: this gateway serves " + service_.models().names()});
    }
    if (!names.empty()) asked_.model = names.front();
  }
  Router* router = nullptr;
  if (const auto fault = service_.find_model(*this, asked_.model, {}, &router, &model_)) return refuse(*fault);
  std::string request;
  if (const auto fault = infer_request(asked_, *model_, service_.max_rows(), &request)) return refuse(*fault);
  called_ = body.size() + request.size();
  account();
  // From here on it is a call as any other: counted, dispatched, answered by send() and finish().
  fault_ = {};
  handler_ = InferCall::begin(service_, lane_, *this);
  handler_->message(std::move(request));
  handler_->half_closed();
}

void ApiConnection::finish(std::uint32_t status, std::string_view message,
                           std::span<const transport::Header> trailers) {
  fault_ = {static_cast<Code>(status), std::string(message)};
  for (const auto& trailer : trailers) {
    if (trailer.name == kPredictedMs) fault_.predicted_ms = std::stoll(trailer.value);
  }
  finished_ = true;
  lane_.loop().ask(*this);
}

void ApiConnection::refuse(const Fault& fault) {
  const int status = status_of(asked_.dialect, fault.code);
  std::string headers;
  if (status == 429) {
    const auto wait = std::max<std::int64_t>(fault.predicted_ms, 100);
    headers =
        "retry-after-ms: " + std::to_string(wait) + "\r\nretry-after: " + std::to_string((wait + 999) / 1000) + "\r\n";
  } else if (status == 503) {
    headers = "retry-after: 1\r\n";
  } else if (status == 504) {
    headers = "x-should-retry: false\r\n";
  }
  answer(status, write_fault(asked_.dialect, fault), std::move(headers));
}

void ApiConnection::refuse_and_close(int status, const char* why) {
  last_ = true;
  in_.clear();
  answer(status, write_fault(Dialect::kOpenAi, {status >= 500 ? Code::kUnavailable : Code::kInvalidArgument, why}));
}

void ApiConnection::answer(int status, std::string body, std::string headers) {
  if (all_.draining()) last_ = true;
  if (!request_id_.empty()) headers += "x-request-id: " + request_id_ + "\r\n";
  out_ = write_answer({status, kJson, std::move(body), std::move(headers)}, head_only_, last_);
  sent_ = 0;
  account();
  wait(State::kSending, all_.limits().body_time);
  write();
}

void ApiConnection::write() {
  while (sent_ < out_.size()) {
    const long count = stream_.write(out_.data() + sent_, out_.size() - sent_);
    if (count == transport::ByteStream::kBlocked) return;
    if (count < 0) {
      broken_ = true;
      return;
    }
    sent_ += static_cast<std::size_t>(count);
  }
  if (state_ != State::kSending) return;
  if (last_) {
    // What still comes is taken and thrown away: closed over it, the client might lose what was said.
    out_ = {};
    in_ = {};
    account();
    shutdown(stream_.fd(), SHUT_WR);
    wait(State::kClosing, kLastWords);
    return;
  }
  out_ = {};
  sent_ = 0;
  account();
  wait(State::kHead, all_.limits().idle_time);
  if (!in_.empty()) lane_.loop().ask(*this);  // what came ahead, in a turn of its own
}

void ApiConnection::watch() {
  const bool more =
      state_ == State::kClosing || state_ == State::kHead || state_ == State::kBody || in_.size() < kAhead;
  const std::uint32_t wanted = (more ? EPOLLIN : 0U) | (sent_ < out_.size() ? EPOLLOUT : 0U);
  if (wanted == std::exchange(watched_, wanted)) return;
  lane_.loop().change(stream_.fd(), wanted, *this);
}

}  // namespace arlo::gateway
