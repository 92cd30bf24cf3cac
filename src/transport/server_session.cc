#include "transport/server_session.h"

#include <algorithm>
#include <array>
#include <list>
#include <utility>

#include "transport/server_call.h"

namespace arlo::transport {
namespace {
constexpr std::array<std::uint8_t, 8> kDrainPing = {'d', 'r', 'a', 'i', 'n'};
constexpr TimeNs kSoon = 10'000'000;   // a reset is this soon after its stream was opened
constexpr std::uint64_t kAtOnce = 10;  // cost of an immediate reset, relative to a later one
}  // namespace

ServerSession::ServerSession(Service& service, const Limits& limits, Memory& memory, std::string peer,
                             std::function<void()> wants_to_send)
    : Http2Session(std::move(wants_to_send)),
      service_(service),
      limits_(limits),
      memory_(memory),
      peer_(std::move(peer)),
      meter_(limits.frames) {
  const auto configure = [](nghttp2_session_callbacks* callbacks, nghttp2_option* options) {
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, &on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, &on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, &on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &on_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, &on_sent);
    nghttp2_option_set_no_auto_window_update(options, 1);
    nghttp2_option_set_no_closed_streams(options, 1);  // they would be kept for their places in the priority tree
    // nghttp2's limit, 33 a second in the long run, ends connections of many clients whose hedged calls are cancelled.
    constexpr std::uint64_t kNoLimit = 1'000'000'000;
    nghttp2_option_set_stream_reset_rate_limit(options, kNoLimit, kNoLimit);
    // gRPC libraries send metadata unchanged, including blanks at its ends.
    nghttp2_option_set_no_rfc9113_leading_and_trailing_ws_validation(options, 1);
  };
  start(&nghttp2_session_server_new3, this, configure,
        {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.streams},
         {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window},
         {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits.header_bytes}},
        limits.connection_window);
}

ServerSession::~ServerSession() {
  gone_ = true;
  while (!calls_.empty()) end(calls_.front(), false);  // nghttp2 does not close streams when it is deleted
}

// Frames of one call come in succession, and each of its headers separately.
ServerSession::Call* ServerSession::find(std::int32_t stream) {
  if (found_ != nullptr && found_->stream() == stream) return found_;
  auto* const call = static_cast<Call*>(nghttp2_session_get_stream_user_data(session_, stream));
  if (call != nullptr) found_ = call;
  return call;
}

void ServerSession::end(Call& call, bool finished) {
  if (found_ == &call) found_ = nullptr;
  std::list<Call> ending;
  ending.splice(ending.begin(), calls_, call.place);
  call.closed(finished);
}

bool ServerSession::feed(std::string_view bytes, TimeNs now) {
  now_ = now;
  if (const auto limit = meter_.feed(bytes, now); !limit.empty()) throw_out(limit);
  if (thrown_out_) return false;
  const auto taken = receive(bytes);
  while (held_ > limits_.held_bytes && shed()) {
  }
  let_on();
  changed();
  if (taken < 0) service_.offended(peer_, "HTTP/2: " + std::string(nghttp2_strerror(static_cast<int>(taken))));
  return taken == static_cast<ssize_t>(bytes.size()) && !over();
}

bool ServerSession::output(std::string* out, std::size_t most) {
  while (held_ > limits_.held_bytes && shed()) {
  }
  const bool good = append(out, most);
  let_on();
  return good;
}

// No further work is done for a client that leaves its answers unread.
void ServerSession::let_on() {
  while (unread_ <= limits_.unread_bytes && !behind_.empty()) {
    Call* call = find(behind_.front());
    behind_.pop_front();
    if (call != nullptr) call->let_on();
  }
}

// Shuts down in two steps: calls sent before the client has heard of it are served.
void ServerSession::go_away() {
  if (std::exchange(draining_, true)) return;
  nghttp2_submit_shutdown_notice(session_);
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, kDrainPing.data());
  changed();
}

void ServerSession::ping() {
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
  changed();
}

bool ServerSession::tick(TimeNs now) {
  now_ = now;
  if (const auto limit = meter_.overdue(now); !limit.empty()) throw_out(limit);
  if (awaited_ != 0 || owing_ != 0) {
    for (Call& call : calls_) {
      if (call.awaited_since() != 0 && now - call.awaited_since() > limits_.body_time) {
        call.give_up(kDeadlineExceeded, "time for a request");
      } else if (call.stalled(now, limits_.body_time)) {
        call.give_up(kDeadlineExceeded, "time for an answer");
      }
    }
  }
  return !thrown_out_;
}

std::size_t ServerSession::calls() const { return calls_.size(); }

bool ServerSession::waits_for_client() const {
  return std::ranges::all_of(calls_, [](const Call& call) { return call.waits_for_client(); });
}

bool ServerSession::shed() {
  Call* most = nullptr;
  for (Call& call : calls_) {
    if (most == nullptr || call.held() > most->held()) most = &call;
  }
  if (most == nullptr || most->held() == 0) return false;
  most->give_up(kResourceExhausted, "bytes of requests and answers");
  return true;
}

void ServerSession::throw_out(std::string_view limit) {
  if (std::exchange(thrown_out_, true)) return;
  if (!std::exchange(calm_, true)) service_.offended(peer_, limit);
  nghttp2_session_terminate_session(session_, NGHTTP2_ENHANCE_YOUR_CALM);
  changed();
}

// Streams opened only to be reset cost work without benefit. A client that cancels calls after waiting for them is
// asked to move to another connection: its open calls end normally, as do those of other clients behind the same proxy.
// A client still here at twice the limit is disconnected.
void ServerSession::count_reset(bool at_once) {
  if (now_ - counted_since_ > limits_.frames.span) {
    counted_since_ = now_;
    resets_ = opened_ = 0;
    cost_ = 0;
  }
  ++resets_;
  cost_ += at_once ? kAtOnce : 1;
  if (cost_ <= kAtOnce * limits_.resets || resets_ <= opened_ / 2) return;
  const bool none_open = at_once && calls_.size() <= 1;  // except the one being reset
  if (none_open || cost_ > 2 * kAtOnce * limits_.resets) return throw_out("resets");
  if (std::exchange(calm_, true)) return;
  service_.offended(peer_, "resets");
  go_away();
}

int ServerSession::on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
  if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  auto& calls = self(user).calls_;
  ++self(user).opened_;
  calls.emplace_front(self(user), frame->hd.stream_id);
  calls.front().place = calls.begin();
  if (nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, &calls.front()) != 0) {
    calls.pop_front();
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }
  return 0;
}

int ServerSession::on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                             std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t,
                             void* user) {
  Call* call = self(user).find(frame->hd.stream_id);
  if (call == nullptr || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  return call->header(text(name, name_size), text(value, value_size)) ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

int ServerSession::on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
  ServerSession& session = self(user);
  const bool answered = frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0;
  if (answered && session.draining_ && std::ranges::equal(frame->ping.opaque_data, kDrainPing)) {
    nghttp2_submit_goaway(session.session_, NGHTTP2_FLAG_NONE,
                          nghttp2_session_get_last_proc_stream_id(session.session_),
                          session.calm_ ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_NO_ERROR, nullptr, 0);
  }
  Call* call = session.find(frame->hd.stream_id);
  if (frame->hd.type == NGHTTP2_RST_STREAM && (call == nullptr || session.now_ - call->begun_at() < kSoon)) {
    session.count_reset(call != nullptr && call->begun_at() == session.now_);
  }
  if (call == nullptr) return 0;
  if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) call->headers_done();
  const bool last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (last && (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA)) call->half_closed();
  return 0;
}

int ServerSession::on_data(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                           std::size_t size, void* user) {
  if (Call* call = self(user).find(stream)) {
    call->data(text(data, size));
  } else {
    nghttp2_session_consume(self(user).session_, stream, size);
  }
  return 0;
}

ssize_t ServerSession::read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most,
                                 std::uint32_t* flags, nghttp2_data_source* source, void*) {
  return static_cast<Answering*>(source->ptr)->read(out, most, flags);
}

int ServerSession::on_close(nghttp2_session* session, std::int32_t stream, std::uint32_t error, void* user) {
  Call* call = self(user).find(stream);
  if (call == nullptr) return 0;
  nghttp2_session_set_stream_user_data(session, stream, nullptr);
  self(user).end(*call, error == NGHTTP2_NO_ERROR);
  return 0;
}

// The client need not send the rest after an early answer.
int ServerSession::on_sent(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
  if (frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.error_code != NGHTTP2_NO_ERROR && !self(user).calm_) {
    self(user).service_.offended(self(user).peer_,
                                 "HTTP/2: " + std::string(nghttp2_http2_strerror(frame->goaway.error_code)));
  }
  if (frame->hd.type == NGHTTP2_DATA) self(user).meter_.sent_data();
  // Faults caused by the client, which it can provoke as often as a reset.
  if (frame->hd.type == NGHTTP2_RST_STREAM && frame->rst_stream.error_code != NGHTTP2_NO_ERROR) {
    self(user).count_reset(true);
  }
  const bool last = frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (last && nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id) == 0) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
  }
  return 0;
}

}  // namespace arlo::transport
