#include "gateway/front/http/api_connection.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "gateway/front/api/task.h"
#include "gateway/front/encode.h"
#include "gateway/front/infer_call.h"
#include "gateway/log.h"
#include "transport/listener.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kRead = 16 << 10;
constexpr std::size_t kAhead = 16 << 10;     // bytes read ahead of the request being answered
constexpr TimeNs kStall = 1'000'000'000;     // without progress by a client that holds memory which others need
constexpr std::size_t kWindow = 64 << 10;    // bytes of an answer that a client must take within body_time
constexpr TimeNs kClosingWait = 1000 * kMs;  // for the client to close
constexpr std::size_t kLargeBody = 1 << 20;  // bytes
constexpr std::size_t kSwells = 16;  // a compressed body's likely maximum after decompression, as multiple of its size
constexpr std::size_t kLongestId = 128;
constexpr std::string_view kJson = "application/json";
constexpr const char* kNoMemory = "the gateway holds as much of requests as it may: try again a little later";
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr const char* kTimeoutMs = "x-request-timeout-ms";

// The client's id if it is safe in headers and logs; otherwise a generated one.
std::string request_id_of(std::string_view given) {
  const bool good = !given.empty() && given.size() <= kLongestId &&
                    std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (good) return std::string(given);
  static const auto kSalt = std::random_device{}();
  static std::atomic<std::uint64_t> count{0};
  return "req-" + std::to_string(kSalt) + "-" + std::to_string(count.fetch_add(1, std::memory_order_relaxed));
}

// Headers that accompany a fault: the missing credential, and when to retry.
std::string headers_of(int status, std::int64_t predicted_ms) {
  if (status == 401) return "WWW-Authenticate: Bearer realm=\"arlo\"\r\n";
  if (status == 503) return "retry-after: 1\r\n";
  if (status == 504) return "x-should-retry: false\r\n";
  if (status != 429) return {};
  // Client packages honour it up to a minute, and retry sooner if it is longer.
  const auto wait = std::clamp<std::int64_t>(predicted_ms, 100, 60'000);
  return "retry-after-ms: " + std::to_string(wait) + "\r\nretry-after: " + std::to_string((wait + 999) / 1000) + "\r\n";
}

}  // namespace

ApiConnection::ApiConnection(ApiConnections& all, DataService& service, Lane& lane, int fd)
    : all_(all),
      service_(service),
      lane_(lane),
      peer_(transport::peer_of(fd)),
      stream_(fd, all.limits().tls),
      since_(now_ns()) {
  yields = true;
  watched_ = EPOLLIN;
  lane_.loop().watch(fd, EPOLLIN, *this);
  wait(State::kHead, all_.limits().first_time);
}

ApiConnection::~ApiConnection() {
  *alive_ = false;
  if (!stream_.fault().empty()) {
    service_.usage().over_limit("TLS");
    log_some(LogLevel::kWarning, "client_over_limit", {{"client", peer_}, {"limit", "TLS: " + stream_.fault()}});
  } else if (state_ == State::kBusy && !finished_) {
    log(LogLevel::kDebug, "http_request",
        {{"id", request_id_}, {"client", peer_}, {"path", path_}, {"status", std::int64_t{499}}});
  }
  if (handler_ != nullptr) handler_->closed(finished_);
  all_.held -= held_;
  lane_.loop().clear(*this);
  lane_.loop().forget(stream_.fd(), *this);
}

std::string_view ApiConnection::header(std::string_view name) const {
  if (name == "x-request-id") return request_id_;
  for (const auto& header : headers_) {
    if (equal_ignoring_case(header.name, name)) return header.value;
  }
  return {};
}

void ApiConnection::wait(State state, TimeNs time) {
  if (std::exchange(state_, state) != state) since_ = now_ns();
  lane_.loop().set(*this, time == kNever ? kNever : now_ns() + time);
}

void ApiConnection::account() {
  const std::size_t now = in_.capacity() + chunks_.held() + out_.capacity() + rest_.capacity() + called_;
  all_.held += now - held_;
  held_ = now;
}

void ApiConnection::due() {
  if (state_ == State::kBusy) return;
  if (state_ == State::kSending) {
    // Bytes that the system has accepted stay there until the client takes them.
    int there = 0;
    if (ioctl(stream_.fd(), SIOCOUTQ, &there) != 0) there = 0;
    const std::size_t taken = sent_ - std::min(sent_, static_cast<std::size_t>(there));
    if (taken >= window_ + kWindow) {
      window_ = taken;
      return wait(State::kSending, all_.limits().body_time);
    }
  }
  if (!idle() && state_ != State::kClosing) {
    service_.usage().over_limit(state_ == State::kSending ? "time for an answer" : "time for a request");
  }
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
  if (!broken_ && ((events & EPOLLIN) != 0 || stream_.wants_write())) read();
  if (!broken_ && (events & EPOLLOUT) != 0) write();
  if (broken_) {
    all_.close(*this);
    return;
  }
  watch();
}

// Runs after the events of the turn in which the call got its answer, or the previous answer was sent.
void ApiConnection::turn_ends() {
  if (finished_) answer_call();
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
  if (count == 0) return half_closed();
  if (count < 0) {
    broken_ = true;
    return;
  }
  if (state_ == State::kClosing) return;
  moved_ = now_ns();
  // Reserve memory for a large body only once a quarter has come: this avoids repeated copies later.
  if (state_ == State::kBody && body_ > kLargeBody && in_.size() >= body_ / 4) in_.reserve(body_);
  in_.append(bytes.data(), static_cast<std::size_t>(count));
  account();
  // A head alone may go on, as it may be a liveness probe; serve() refuses other requests.
  const bool more = state_ == State::kBody || in_.size() > all_.limits().head_bytes;
  if (more && state_ != State::kBusy && state_ != State::kSending && all_.held > all_.limits().memory &&
      !all_.make_room_in_memory()) {
    service_.usage().over_limit("bytes of requests and answers");
    refuse_and_close(503, kNoMemory);
    return;
  }
  go_on();
}

// A half-closed client may still want its answer, but a client that has gone looks the same. Only the latter resets the
// connection when it receives bytes, so we send bytes without meaning.
void ApiConnection::half_closed() {
  ended_ = true;
  const bool done = state_ == State::kHead || state_ == State::kBody || state_ == State::kClosing;
  const auto gone = [this] {
    return stream_.write(kContinue.data(), kContinue.size()) != static_cast<long>(kContinue.size());
  };
  if (done || (state_ == State::kBusy && modern_ && gone())) broken_ = true;
}

bool ApiConnection::stalled(TimeNs now) const {
  return (state_ == State::kSending || state_ == State::kBody) && now - moved_ > kStall;
}

ApiConnection::Wanted ApiConnection::wanted(TimeNs now) const {
  if (state_ == State::kClosing || (state_ == State::kHead && !asked_)) return Wanted::kSilent;
  if (state_ == State::kHead) return Wanted::kIdle;
  return stalled(now) ? Wanted::kSlow : Wanted::kBusy;
}

void ApiConnection::go_on() {
  if (broken_) return;
  if (state_ == State::kHead) {
    in_.erase(0, empty_lines(in_));
    if (in_.empty()) {
      broken_ = ended_;
      return;
    }
    if (!std::exchange(timed_, true)) wait(State::kHead, all_.limits().head_time);
    if (!take_head()) {
      broken_ = broken_ || (ended_ && state_ == State::kHead);
      return;
    }
  }
  std::string body;
  if (state_ != State::kBody || !take_body(&body)) {
    broken_ = broken_ || (ended_ && state_ == State::kBody);
    return;
  }
  timed_ = false;
  asked_ = true;
  yields = false;
  wait(State::kBusy, kNever);
  account();
  serve(std::move(body));
}

// Returns false if it is incomplete or invalid. Otherwise removes it from the received bytes.
bool ApiConnection::take_body(std::string* body) {
  if (!chunked_) {
    if (in_.size() < body_) return false;
    *body = std::exchange(in_, {});
    in_ = body->substr(body_);
    body->resize(body_);
  } else {
    std::size_t taken = 0;
    const auto state = chunks_.feed(in_, &taken);
    in_.erase(0, taken);
    account();
    if (state == ChunkedBody::State::kMore) return false;
    if (state == ChunkedBody::State::kTooLarge) {
      refuse_and_close(413, too_large());
      return false;
    }
    if (state == ChunkedBody::State::kWrong) {
      refuse_and_close(400, "the body's chunks are not those of HTTP/1.1");
      return false;
    }
    *body = std::move(chunks_.body());
    chunks_ = ChunkedBody();
  }
  if (in_.empty()) in_.shrink_to_fit();
  return true;
}

// Returns false if it is incomplete or not a head.
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
  query_ = head->query;
  head_only_ = head->method == "HEAD";
  modern_ = !head->old;
  headers_.clear();
  for (const auto& [name, value] : head->headers) headers_.push_back({std::string(name), std::string(value)});
  request_id_ = request_id_of(head->header("x-request-id"));
  if (!head->good || !head->framed || !head->addressed) {
    const bool nameless = head->good && head->framed;
    refuse_and_close(400, nameless ? "send one Host header, as HTTP/1.1 asks for" : "this is no request of HTTP/1.1");
    return false;
  }
  chunked_ = head->chunked;
  if (chunked_ && !equal_ignoring_case(head->header("transfer-encoding"), "chunked")) {
    refuse_and_close(501, "Transfer-Encoding: chunked is taken, and no other");
    return false;
  }
  if (head->body > all_.limits().body_bytes) {
    refuse_and_close(413, too_large());
    return false;
  }
  chunks_ = ChunkedBody(chunked_ ? all_.limits().body_bytes : 0);
  last_ = last_ || head->closes;
  body_ = head->body;
  const bool waits = modern_ && equal_ignoring_case(head->header("expect"), "100-continue") && in_.size() == head->size;
  in_.erase(0, head->size);
  if (waits && (chunked_ || body_ != 0)) {
    if (stream_.write(kContinue.data(), kContinue.size()) != static_cast<long>(kContinue.size())) broken_ = true;
  }
  wait(State::kBody, all_.limits().body_time);
  return true;
}

void ApiConnection::serve(std::string body) {
  const bool probes = all_.limits().probes;
  auto found = find_route(method_, path_, probes);
  const Route* route = found.route;
  request_.reset();
  dialect_ = found.dialect;
  if (method_ == "OPTIONS" && !header("access-control-request-method").empty() && !all_.limits().origins.empty()) {
    return answer({.type = "text/plain", .headers = cors(true)});
  }
  if (route == nullptr && found.other.empty()) {
    return refuse({Code::kNotFound,
                   probes ? "there are /metrics, /livez and /readyz"
                          : "there is no such path; see docs/http.md, or POST /v1/embeddings",
                   false, 0, Fault::Kind::kNoPath});
  }
  if (route == nullptr) {
    const Fault fault{Code::kInvalidArgument, found.other + " only"};
    return answer({write_fault(dialect_, fault, request_id_), kJson, "Allow: " + found.other + "\r\n", 405});
  }
  if (!route->open) {
    if (const auto fault = service_.authorize(*this)) return refuse(*fault);
    if (all_.held > all_.limits().memory && !all_.make_room_in_memory()) {
      service_.usage().over_limit("bytes of requests and answers");
      return refuse({Code::kUnavailable, kNoMemory});
    }
  }
  if (route->say != nullptr) {
    HttpAnswer reply;
    if (const auto fault = route->say(service_, *this, found.parts, &reply)) return refuse(*fault);
    return answer(std::move(reply));
  }
  if (const auto fault = read_deadline()) return refuse(*fault);
  request_ = std::make_shared<ApiRequest>();
  request_->task = route->make();
  request_->body = std::move(body);
  request_->id = request_id_;
  request_->encoding = header("content-encoding");
  request_->json_size = header(kJsonSize);
  request_->query_model = query_value(query_, "model");
  request_->parts = std::move(found.parts);
  request_->takes_gzip = takes_gzip(header("accept-encoding"));
  // litellm sends this key only to infinity; its body is that of vLLM's clients.
  request_->infinity = path_.starts_with(kInfinity) || header("authorization") == "Bearer None";
  called_ = request_->body.size();
  account();
  const std::size_t bytes = request_->encoding.empty() ? request_->body.size() : kSwells * request_->body.size();
  work(
      bytes > ApiRequest::kLongBody, bytes,
      [&service = service_, most = all_.limits().body_bytes](ApiRequest& it) { it.read(service, most); },
      &ApiConnection::begin_call);
}

void ApiConnection::work(bool aside, std::size_t bytes, std::function<void(ApiRequest&)> what,
                         void (ApiConnection::*then)()) {
  if (!aside) {
    what(*request_);
    return (this->*then)();
  }
  service_.call_received();
  lane_.aside(bytes).run(
      this,
      [what = std::move(what), awaited = std::weak_ptr(request_)] {
        if (const auto request = awaited.lock()) what(*request);
      },
      [this, then, alive = alive_, &service = service_] {
        service.call_over();
        if (!*alive) return;
        (this->*then)();
        gone_on();
      });
}

void ApiConnection::gone_on() {
  if (broken_) {
    all_.close(*this);
  } else {
    watch();
  }
}

void ApiConnection::read_again() {
  const std::size_t bytes = request_->body.size();
  work(
      bytes > ApiRequest::kLongBody, bytes, [&service = service_](ApiRequest& it) { it.read_again(service); },
      &ApiConnection::begin_call);
}

// Reads the client's timeout, in ms.
MaybeFault ApiConnection::read_deadline() {
  deadline_ = kNever;
  const auto value = header(kTimeoutMs);
  if (value.empty()) return {};
  std::uint32_t ms = 0;
  if (!read_number(value, &ms) || ms == 0) {
    return invalid(std::string(kTimeoutMs) + " must be a whole number of milliseconds, 1 or more");
  }
  deadline_ = now_ns() + TimeNs{ms} * kMs;
  return {};
}

void ApiConnection::begin_call() {
  dialect_ = request_->dialect();
  called_ = request_->body.size();  // decompressed, if it was compressed
  if (const auto job = request_->wanted()) {
    account();
    const TimeNs deadline = deadline_ == kNever ? now_ns() + request_->patience() : deadline_;
    return service_.helpers().run(job, service_.client_of(*this), deadline, lane_.loop(), [this, alive = alive_] {
      if (!*alive) return;
      read_again();
      gone_on();
    });
  }
  if (const auto& fault = request_->fault()) return refuse(*fault, request_->status());
  if (request_->answered()) return answer(std::move(request_->own()));
  auto bytes = std::move(request_->call());
  called_ += bytes.size();
  account();
  // From here on it is an ordinary call: counted, dispatched, answered by send() and finish().
  fault_ = {};
  handler_ = infer_call(service_, lane_, *this);
  handler_->message(std::move(bytes));
  handler_->half_closed();
}

void ApiConnection::answer_call() {
  auto handler = std::move(handler_);
  handler->closed(true);
  handler.reset();
  finished_ = false;
  called_ = answer_.size();
  if (fault_.code != Code::kOk) return refuse(fault_);
  account();
  const std::size_t bytes = answer_.size();
  request_->call() = std::exchange(answer_, {});
  work(bytes > ApiRequest::kLongAnswer, bytes, [](ApiRequest& it) { it.write(); }, &ApiConnection::answer_written);
}

void ApiConnection::answer_written() {
  const auto& fault = request_->fault();
  if (!fault) return answer(std::move(request_->own()));
  if (fault->kind == Fault::Kind::kNotFinite) service_.usage().not_finite();
  refuse(*fault);
}

void ApiConnection::finish(std::uint32_t status, std::string_view message,
                           std::span<const transport::Header> trailers) {
  fault_ = {static_cast<Code>(status), std::string(message)};
  for (const auto& trailer : trailers) {
    if (trailer.name == kPredictedMs) fault_.predicted_ms = std::stoll(trailer.value);
    if (trailer.name == kRetry) fault_.code = Code::kInvalidArgument;  // it is too large at any time
  }
  finished_ = true;
  lane_.loop().ask(*this);
}

void ApiConnection::refuse(const Fault& fault, int status) {
  if (status == 0) status = status_of(dialect_, fault);
  answer({write_fault(dialect_, fault, request_id_), kJson, headers_of(status, fault.predicted_ms), status});
}

void ApiConnection::refuse_and_close(int status, const std::string& why) {
  last_ = true;
  const Dialect dialect = dialect_of(state_ == State::kBody ? std::string_view(path_) : target_of(in_));
  in_.clear();
  const Code code = status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
  answer({write_fault(dialect, {code, why}, request_id_), kJson, headers_of(status, 0), status});
}

std::string ApiConnection::too_large() const {
  return "the body is larger than " + std::to_string(all_.limits().body_bytes) +
         " bytes: send fewer texts at a time, or raise gateway.max_body_bytes";
}

std::string ApiConnection::cors(bool preflight) const {
  const auto& origins = all_.limits().origins;
  if (origins.empty()) return {};
  const bool any = std::ranges::find(origins, "*") != origins.end();
  std::string out = any ? "" : "Vary: Origin\r\n";
  const auto origin = header("origin");
  if (origin.empty() || (!any && std::ranges::find(origins, origin) == origins.end())) return out;
  out.append("Access-Control-Allow-Origin: ").append(any ? "*" : origin).append("\r\n");
  if (!preflight) return out + "Access-Control-Expose-Headers: *\r\n";
  out.append("Access-Control-Allow-Methods: GET, HEAD, POST\r\nAccess-Control-Max-Age: 86400\r\n");
  if (const auto wanted = header("access-control-request-headers"); !wanted.empty()) {
    out.append("Access-Control-Allow-Headers: ").append(wanted).append("\r\n");
  }
  return out;
}

void ApiConnection::answer(HttpAnswer made) {
  if (all_.draining()) last_ = true;
  const TimeNs now = now_ns();
  const auto level = made.status >= 500 && !all_.limits().probes ? LogLevel::kInfo : LogLevel::kDebug;
  if (logs(level)) {
    log_some(level, "http_request",
             {{"id", request_id_},
              {"client", peer_},
              {"path", path_},
              {"status", std::int64_t{made.status}},
              {"ms", static_cast<double>(now - since_) * 1e-6}});
  }
  request_.reset();
  called_ = 0;
  if (made.headers.find("Access-Control-") == std::string::npos) made.headers += cors(false);
  headers_.clear();
  if (!request_id_.empty()) made.headers += "x-request-id: " + request_id_ + "\r\n";
  const bool apart = !head_only_ && made.body.size() > ApiRequest::kLongAnswer;  // copying it takes a while
  out_ = write_answer(made, head_only_ || apart, last_);
  rest_ = apart ? std::move(made.body) : std::string();
  sent_ = window_ = 0;
  account();
  wait(State::kSending, all_.limits().body_time);
  moved_ = now;
  write();
}

void ApiConnection::write() {
  bool some = false;
  while (sent_ < out_.size()) {
    const long count = stream_.write(out_.data() + sent_, out_.size() - sent_);
    if (count == transport::ByteStream::kBlocked) {
      if (some) moved_ = now_ns();
      return;
    }
    if (count < 0) {
      broken_ = true;
      return;
    }
    some = true;
    sent_ += static_cast<std::size_t>(count);
    if (sent_ < out_.size() || rest_.empty()) continue;
    out_ = std::exchange(rest_, {});
    sent_ = window_ = 0;
  }
  if (state_ != State::kSending) return;
  if (last_) {
    // Read and discard further bytes: if we closed now, the client might lose the answer.
    out_ = {};
    in_ = {};
    account();
    stream_.end_writing();
    wait(State::kClosing, kClosingWait);
    return;
  }
  out_ = {};
  sent_ = 0;
  account();
  if (ended_ && in_.empty()) {
    broken_ = true;
    return;
  }
  wait(State::kHead, all_.limits().idle_time);
  if (!in_.empty()) lane_.loop().ask(*this);  // bytes read ahead get a separate turn
}

void ApiConnection::watch() {
  const bool more =
      state_ == State::kClosing || state_ == State::kHead || state_ == State::kBody || in_.size() < kAhead;
  const bool out = sent_ < out_.size() || stream_.wants_write();
  const std::uint32_t wanted = (more && !ended_ ? EPOLLIN : 0U) | (out ? EPOLLOUT : 0U);
  if (wanted == std::exchange(watched_, wanted)) return;
  lane_.loop().change(stream_.fd(), wanted, *this);
}

}  // namespace arlo::gateway
