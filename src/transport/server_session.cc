#include "transport/server_session.h"

#include <algorithm>
#include <list>
#include <new>
#include <optional>

#include "transport/grpc_message.h"
#include "transport/http2.h"
#include "transport/inflate.h"

namespace arlo::transport {
namespace {

constexpr std::uint32_t kUnimplemented = 12;
constexpr std::uint32_t kResourceExhausted = 8;
constexpr std::uint32_t kInternal = 13;
constexpr std::size_t kHeaderOverhead = 32;  // of each, as SETTINGS_MAX_HEADER_LIST_SIZE counts (RFC 9113, 6.5.2)
constexpr std::string_view kGrpc = "application/grpc";

}  // namespace

class ServerSession::Impl {
 public:
  Impl(Service& service, const Limits& limits, std::function<void()> wants_to_send);
  ~Impl();

  bool feed(std::string_view bytes, TimeNs now);
  bool output(std::string* out, std::size_t most);
  void go_away();
  [[nodiscard]] bool over() const { return is_over(session_); }
  [[nodiscard]] std::size_t calls() const { return calls_.size(); }

 private:
  class Call;

  static Impl& self(void* user) { return *static_cast<Impl*>(user); }
  static int on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user);
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t flags, void* user);
  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user);
  static int on_data(nghttp2_session*, std::uint8_t flags, std::int32_t stream, const std::uint8_t* data,
                     std::size_t size, void* user);
  static int on_close(nghttp2_session*, std::int32_t stream, std::uint32_t error, void* user);
  static int on_sent(nghttp2_session*, const nghttp2_frame* frame, void* user);
  static ssize_t read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most, std::uint32_t* flags,
                           nghttp2_data_source* source, void*);

  Call* find(std::int32_t stream) const {
    return static_cast<Call*>(nghttp2_session_get_stream_user_data(session_, stream));
  }
  void changed();
  [[nodiscard]] bool too_many_resets();
  void end(Call& call, bool finished);

  Service& service_;
  const Limits limits_;
  std::function<void()> wants_to_send_;
  nghttp2_session* session_ = nullptr;
  TimeNs now_ = 0;
  std::list<Call> calls_;  // that are open
  bool told_ = false;
  bool gone_ = false;  // the session is being deleted
  std::uint32_t resets_ = 0;
  TimeNs resets_since_ = 0;
};

class ServerSession::Impl::Call final : public ServerCall {
 public:
  Call(Impl& session, std::int32_t stream)
      : session_(session), stream_(stream), reader_(session.limits_.message_bytes) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::list<Call>::iterator place;  // in calls_

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::string_view header(std::string_view name) const override {
    for (const Header& each : headers_) {
      if (each.name == name) return each.value;
    }
    return {};
  }
  [[nodiscard]] TimeNs deadline() const override { return deadline_; }
  [[nodiscard]] std::size_t unsent() const override { return unsent_; }

  void send(std::string message) override {
    if (finished_) return;
    begin_response();
    push(prefix_of(message.size()));
    push(std::move(message));
    resume();
  }

  void finish(std::uint32_t status, std::string_view message, std::span<const Header> trailers) override {
    if (finished_) return;
    finished_ = true;
    trailers_ = {{"grpc-status", std::to_string(status)}};
    if (!message.empty()) trailers_.push_back({"grpc-message", percent_encoded(message)});
    trailers_.insert(trailers_.end(), trailers.begin(), trailers.end());
    if (begun_) {
      resume();
      return;
    }
    begun_ = true;  // nothing was sent: the trailers are the headers
    std::vector<nghttp2_nv> fields{field(":status", "200"), field("content-type", kGrpc)};
    for (const Header& each : trailers_) fields.push_back(field(each.name, each.value));
    nghttp2_submit_response(session_.session_, stream_, fields.data(), fields.size(), nullptr);
    session_.changed();
  }

  bool header(std::string_view name, std::string_view value) {
    header_bytes_ += name.size() + value.size() + kHeaderOverhead;
    if (header_bytes_ > session_.limits_.header_bytes) return false;
    if (name == ":path") {
      path_ = value;
    } else if (name == ":method") {
      post_ = value == "POST";
    } else if (name == "content-type") {
      grpc_ = value.substr(0, kGrpc.size()) == kGrpc;
    } else if (name == "grpc-timeout") {
      // A text that is none is as good as none.
      const auto timeout = parse_timeout(value);
      if (timeout) deadline_ = session_.now_ + *timeout;
    } else if (name.front() != ':') {
      headers_.push_back({std::string(name), std::string(value)});
    }
    return true;
  }

  void headers_done() {
    if (!post_ || !grpc_) {
      const std::vector<nghttp2_nv> fields{field(":status", post_ ? "415" : "405")};
      finished_ = begun_ = true;
      nghttp2_submit_response(session_.session_, stream_, fields.data(), fields.size(), nullptr);
      session_.changed();
      return;
    }
    handler_ = session_.service_.begin(*this);
    if (handler_ == nullptr) finish(kUnimplemented, "there is no method " + path_, {});
  }

  void data(std::string_view bytes) {
    if (handler_ == nullptr || refused_) return;
    const auto result = reader_.feed(bytes, [this](std::string message, bool compressed) {
      if (finished_ || refused_) return;
      if (!compressed) {
        handler_->message(std::move(message));
      } else {
        opened(message);
      }
    });
    if (result == MessageReader::Result::kTooLarge) refuse(kResourceExhausted, too_large());
    if (result == MessageReader::Result::kMalformed) refuse(kInternal, "what was sent is no gRPC message");
  }

  void half_closed() {
    if (handler_ == nullptr || refused_ || finished_) return;
    if (reader_.within()) {
      finish(kInternal, "the call ends within a message", {});
    } else {
      handler_->half_closed();
    }
  }

  void closed(bool finished) {
    const bool answered = std::exchange(finished_, true) && finished;
    if (handler_ != nullptr) handler_->closed(answered);
  }

  ssize_t read(std::uint8_t* out, std::size_t most, std::uint32_t* flags) {
    std::size_t count = 0;
    while (count < most && next_piece_ < pieces_.size()) {
      const std::string& piece = pieces_[next_piece_];
      const std::size_t some = std::min(most - count, piece.size() - at_);
      std::copy_n(piece.begin() + static_cast<std::ptrdiff_t>(at_), some, out + count);
      count += some;
      at_ += some;
      if (at_ == piece.size()) {
        pieces_[next_piece_++] = {};
        at_ = 0;
      }
    }
    unsent_ -= count;
    const bool all = next_piece_ == pieces_.size();
    if (all) {
      pieces_.clear();
      next_piece_ = 0;
    }
    if (all && finished_) {
      *flags = NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      std::vector<nghttp2_nv> fields;
      fields.reserve(trailers_.size());
      for (const Header& each : trailers_) fields.push_back(field(each.name, each.value));
      if (nghttp2_submit_trailer(session_.session_, stream_, fields.data(), fields.size()) != 0) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
      }
    } else if (count == 0) {
      deferred_ = true;
      return NGHTTP2_ERR_DEFERRED;
    }
    return static_cast<ssize_t>(count);
  }

 private:
  void begin_response() {
    if (begun_) return;
    begun_ = true;
    const std::vector<nghttp2_nv> fields{field(":status", "200"), field("content-type", kGrpc)};
    nghttp2_data_provider provider{};
    provider.source.ptr = this;
    provider.read_callback = &Impl::read_data;
    nghttp2_submit_response(session_.session_, stream_, fields.data(), fields.size(), &provider);
  }

  void opened(std::string_view message) {
    const std::string_view encoding = header("grpc-encoding");
    std::string bytes;
    switch (open(encoding, message, session_.limits_.message_bytes, &bytes)) {
      case Opened::kOk:
        handler_->message(std::move(bytes));
        return;
      case Opened::kTooLarge:
        refuse(kResourceExhausted, too_large());
        return;
      case Opened::kMalformed:
        refuse(kInternal, "a message is not compressed as grpc-encoding says");
        return;
      case Opened::kUnknownEncoding:
        const std::vector<Header> known{{"grpc-accept-encoding", std::string(kEncodings)}};
        refuse(kUnimplemented, "grpc-encoding '" + std::string(encoding) + "' is not known here", known);
        return;
    }
  }

  // What comes is not looked at any more.
  void refuse(std::uint32_t status, std::string_view message, std::span<const Header> trailers = {}) {
    refused_ = true;
    finish(status, message, trailers);
  }

  [[nodiscard]] std::string too_large() const {
    return "a message is larger than " + std::to_string(session_.limits_.message_bytes) + " bytes";
  }

  void push(std::string piece) {
    if (piece.empty()) return;
    unsent_ += piece.size();
    pieces_.push_back(std::move(piece));
  }

  void resume() {
    if (deferred_) {
      deferred_ = false;
      nghttp2_session_resume_data(session_.session_, stream_);
    }
    session_.changed();
  }

  Impl& session_;
  const std::int32_t stream_;
  std::unique_ptr<CallHandler> handler_;
  std::string path_;
  std::vector<Header> headers_;
  std::size_t header_bytes_ = 0;
  TimeNs deadline_ = kNever;
  bool post_ = false;
  bool grpc_ = false;
  MessageReader reader_;
  bool refused_ = false;   // what comes is not looked at any more
  bool begun_ = false;     // the response
  bool finished_ = false;  // nothing is added to it
  bool deferred_ = false;  // nghttp2 waits for resume_data
  std::vector<std::string> pieces_;
  std::size_t next_piece_ = 0;
  std::size_t at_ = 0;  // of the next piece
  std::size_t unsent_ = 0;
  std::vector<Header> trailers_;
};

ServerSession::Impl::Impl(Service& service, const Limits& limits, std::function<void()> wants_to_send)
    : service_(service), limits_(limits), wants_to_send_(std::move(wants_to_send)) {
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, &Impl::on_begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, &Impl::on_header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, &Impl::on_frame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &Impl::on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &Impl::on_close);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, &Impl::on_sent);
  const int made = nghttp2_session_server_new(&session_, callbacks, this);
  nghttp2_session_callbacks_del(callbacks);
  if (made != 0) throw std::bad_alloc();
  const std::vector<nghttp2_settings_entry> settings{
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits.header_bytes},
  };
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                        static_cast<std::int32_t>(limits.connection_window));
}

ServerSession::Impl::~Impl() {
  gone_ = true;
  while (!calls_.empty()) end(calls_.front(), false);  // nghttp2 closes no stream when it goes
  nghttp2_session_del(session_);
}

void ServerSession::Impl::end(Call& call, bool finished) {
  std::list<Call> ending;
  ending.splice(ending.begin(), calls_, call.place);
  call.closed(finished);
}

bool ServerSession::Impl::feed(std::string_view bytes, TimeNs now) {
  now_ = now;
  const auto taken =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  changed();
  return taken == static_cast<ssize_t>(bytes.size()) && !over();
}

bool ServerSession::Impl::output(std::string* out, std::size_t most) {
  told_ = false;
  return append_output(session_, out, most);
}

void ServerSession::Impl::go_away() {
  nghttp2_submit_shutdown_notice(session_);
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_NO_ERROR, nullptr, 0);
  changed();
}

void ServerSession::Impl::changed() {
  if (told_ || gone_ || nghttp2_session_want_write(session_) == 0) return;
  told_ = true;
  wants_to_send_();
}

bool ServerSession::Impl::too_many_resets() {
  if (now_ - resets_since_ > limits_.resets_span) {
    resets_since_ = now_;
    resets_ = 0;
  }
  return ++resets_ > limits_.resets;
}

int ServerSession::Impl::on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
  if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  auto& calls = self(user).calls_;
  calls.emplace_front(self(user), frame->hd.stream_id);
  calls.front().place = calls.begin();
  if (nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, &calls.front()) != 0) {
    calls.pop_front();
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }
  return 0;
}

int ServerSession::Impl::on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                                   std::size_t name_size, const std::uint8_t* value, std::size_t value_size,
                                   std::uint8_t, void* user) {
  Call* call = self(user).find(frame->hd.stream_id);
  if (call == nullptr || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  return call->header(text(name, name_size), text(value, value_size)) ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

int ServerSession::Impl::on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
  Impl& session = self(user);
  if (frame->hd.type == NGHTTP2_RST_STREAM && session.too_many_resets()) {
    nghttp2_session_terminate_session(session.session_, NGHTTP2_ENHANCE_YOUR_CALM);
    return 0;
  }
  Call* call = session.find(frame->hd.stream_id);
  if (call == nullptr) return 0;
  if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) call->headers_done();
  const bool last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (last && (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA)) call->half_closed();
  return 0;
}

int ServerSession::Impl::on_data(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                                 std::size_t size, void* user) {
  if (Call* call = self(user).find(stream)) call->data(text(data, size));
  return 0;
}

ssize_t ServerSession::Impl::read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most,
                                       std::uint32_t* flags, nghttp2_data_source* source, void*) {
  return static_cast<Call*>(source->ptr)->read(out, most, flags);
}

int ServerSession::Impl::on_close(nghttp2_session* session, std::int32_t stream, std::uint32_t error, void* user) {
  Call* call = self(user).find(stream);
  if (call == nullptr) return 0;
  nghttp2_session_set_stream_user_data(session, stream, nullptr);
  self(user).end(*call, error == NGHTTP2_NO_ERROR);
  return 0;
}

// An answer before the client has said all: it need not go on.
int ServerSession::Impl::on_sent(nghttp2_session* session, const nghttp2_frame* frame, void*) {
  const bool last = frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (last && nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id) == 0) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
  }
  return 0;
}

ServerSession::ServerSession(Service& service, const Limits& limits, std::function<void()> wants_to_send)
    : impl_(std::make_unique<Impl>(service, limits, std::move(wants_to_send))) {}
ServerSession::~ServerSession() = default;
bool ServerSession::feed(std::string_view bytes, TimeNs now) { return impl_->feed(bytes, now); }
bool ServerSession::output(std::string* out, std::size_t most) { return impl_->output(out, most); }
void ServerSession::go_away() { impl_->go_away(); }
bool ServerSession::over() const { return impl_->over(); }
std::size_t ServerSession::calls() const { return impl_->calls(); }

}  // namespace arlo::transport
