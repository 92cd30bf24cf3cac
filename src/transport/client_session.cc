#include "transport/client_session.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <list>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "transport/grpc_message.h"
#include "transport/http2.h"

namespace arlo::transport {
namespace {

constexpr std::uint32_t kUnknown = 2;

}  // namespace

class ClientSession::Impl {
 public:
  Impl(std::string authority, const ClientLimits& limits, std::function<void()> wants_to_send);
  ~Impl();

  std::int32_t call(std::string_view path, std::string message, Done done, std::string_view traceparent);
  void give_up(std::int32_t stream);
  [[nodiscard]] bool takes_calls() const { return nghttp2_session_check_request_allowed(session_) != 0; }
  bool feed(std::string_view bytes);
  bool output(std::string* out, std::size_t most) {
    told_ = false;
    return append_output(session_, out, most);
  }
  [[nodiscard]] bool over() const { return is_over(session_); }
  [[nodiscard]] std::size_t calls() const { return calls_.size(); }

  std::string why_lost = "the connection is closed";

 private:
  struct Call {
    Call(std::string message_to_send, Done when_done, std::uint32_t most_bytes)
        : piece{prefix_of(message_to_send.size()), std::move(message_to_send)},
          done(std::move(when_done)),
          reader(most_bytes) {}

    Piece piece;
    std::size_t sent = 0;  // in it
    Done done;
    MessageReader reader;
    Answer answer;
    std::optional<std::uint32_t> status;
    std::string http_status;
    int messages = 0;
    std::string fault;  // in the received data
    std::uint32_t fault_status = kInternal;
    std::list<Call>::iterator place;  // in calls_
  };

  static Impl& self(void* user) { return *static_cast<Impl*>(user); }
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t flags, void* user);
  static int on_data(nghttp2_session*, std::uint8_t flags, std::int32_t stream, const std::uint8_t* data,
                     std::size_t size, void* user);
  static int on_close(nghttp2_session*, std::int32_t stream, std::uint32_t error, void* user);
  static ssize_t read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most, std::uint32_t* flags,
                           nghttp2_data_source* source, void*);

  Call* find(std::int32_t stream) const {
    return static_cast<Call*>(nghttp2_session_get_stream_user_data(session_, stream));
  }
  void end(Call& call, std::uint32_t error);
  static Answer fault(std::uint32_t status, std::string why) { return {status, std::move(why), {}, false, false}; }
  static Answer lost(std::string why, bool unsent) { return {kUnavailable, std::move(why), {}, true, unsent}; }
  void changed();

  const std::string authority_;
  const ClientLimits limits_;
  std::function<void()> wants_to_send_;
  nghttp2_session* session_ = nullptr;
  std::list<Call> calls_;  // open calls
  bool told_ = false;
  bool gone_ = false;
};

ClientSession::Impl::Impl(std::string authority, const ClientLimits& limits, std::function<void()> wants_to_send)
    : authority_(std::move(authority)), limits_(limits), wants_to_send_(std::move(wants_to_send)) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* options = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&options) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_header_callback(callbacks, &Impl::on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &Impl::on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &Impl::on_close);
  // Headers are not validated as HTTP: we look at three of an answer's, and pass none on.
  nghttp2_option_set_no_http_messaging(options, 1);
  const int made = nghttp2_session_client_new3(&session_, callbacks, this, options, session_memory());
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_option_del(options);
  if (made != 0) throw std::bad_alloc();
  const std::vector<nghttp2_settings_entry> settings{
      {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window},
  };
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                        static_cast<std::int32_t>(limits.connection_window));
}

ClientSession::Impl::~Impl() {
  gone_ = true;
  while (!calls_.empty()) {
    calls_.front().fault = why_lost;
    end(calls_.front(), NGHTTP2_CANCEL);
  }
  nghttp2_session_del(session_);
}

void ClientSession::Impl::changed() {
  if (told_ || gone_ || nghttp2_session_want_write(session_) == 0) return;
  told_ = true;
  wants_to_send_();
}

std::int32_t ClientSession::Impl::call(std::string_view path, std::string message, Done done,
                                       std::string_view traceparent) {
  calls_.emplace_front(std::move(message), std::move(done), limits_.message_bytes);
  Call& call = calls_.front();
  call.place = calls_.begin();
  const std::array<nghttp2_nv, 8> fields{constant(":method", "POST"),
                                         constant(":scheme", "http"),
                                         constant(":path", path),
                                         constant(":authority", authority_),
                                         constant("te", "trailers"),
                                         constant("content-type", "application/grpc"),
                                         constant("user-agent", "arlo-gateway"),
                                         field("traceparent", traceparent)};
  const std::size_t count = fields.size() - (traceparent.empty() ? 1 : 0);
  nghttp2_data_provider provider{};
  provider.source.ptr = &call;
  provider.read_callback = &Impl::read_data;
  const auto stream = nghttp2_submit_request(session_, nullptr, fields.data(), count, &provider, &call);
  if (stream < 0) {
    call.fault = "the connection takes no further calls";
    end(call, NGHTTP2_REFUSED_STREAM);
    return stream;
  }
  changed();
  return stream;
}

void ClientSession::Impl::give_up(std::int32_t stream) {
  if (stream <= 0 || find(stream) == nullptr) return;
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
  changed();
}

bool ClientSession::Impl::feed(std::string_view bytes) {
  const auto taken =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  changed();
  return taken == static_cast<ssize_t>(bytes.size()) && !over();
}

void ClientSession::Impl::end(Call& call, std::uint32_t error) {
  std::list<Call> ending;
  ending.splice(ending.begin(), calls_, call.place);
  Answer& answer = call.answer;
  if (!call.fault.empty() && error == NGHTTP2_NO_ERROR) {
    answer = fault(call.fault_status, std::move(call.fault));
  } else if (call.status) {
    answer.status = *call.status;
    if (answer.status != 0) answer.bytes.clear();
    if (answer.status == 0 && call.messages != 1) answer = fault(kInternal, "an answer without a message");
  } else if (error == NGHTTP2_NO_ERROR) {
    answer = fault(kUnknown, "the server answers with HTTP status " + call.http_status);
  } else {
    const bool unsent = error == NGHTTP2_REFUSED_STREAM;
    answer = lost(call.fault.empty() ? nghttp2_http2_strerror(error) : std::move(call.fault), unsent);
  }
  call.done(std::move(answer));
}

int ClientSession::Impl::on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                                   std::size_t name_size, const std::uint8_t* value, std::size_t value_size,
                                   std::uint8_t, void* user) {
  Call* call = self(user).find(frame->hd.stream_id);
  if (call == nullptr) return 0;
  const std::string_view what = text(name, name_size);
  const std::string_view said = text(value, value_size);
  if (what == "grpc-status") {
    std::uint32_t status = kUnknown;
    const auto [rest, error] = std::from_chars(said.data(), said.data() + said.size(), status);
    call->status = error == std::errc() && rest == said.data() + said.size() ? status : kUnknown;
  } else if (what == "grpc-message") {
    call->answer.message = percent_decoded(said);
  } else if (what == ":status") {
    call->http_status = said;
  }
  return 0;
}

int ClientSession::Impl::on_data(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                                 std::size_t size, void* user) {
  Call* call = self(user).find(stream);
  if (call == nullptr || !call->fault.empty()) return 0;
  const auto result = call->reader.feed(text(data, size), [call](Message message, bool compressed) {
    ++call->messages;
    if (compressed) call->fault = "the server compresses its answer, though it was not asked to";
    call->answer.bytes = std::move(message.whole());
  });
  if (result == MessageReader::Result::kTooLarge) {
    call->fault = "the answer is larger than " + std::to_string(self(user).limits_.message_bytes) + " bytes";
    call->fault_status = kResourceExhausted;
  } else if (result == MessageReader::Result::kMalformed) {
    call->fault = "the answer is no gRPC message";
  }
  return 0;
}

int ClientSession::Impl::on_close(nghttp2_session* session, std::int32_t stream, std::uint32_t error, void* user) {
  Call* call = self(user).find(stream);
  if (call == nullptr) return 0;
  nghttp2_session_set_stream_user_data(session, stream, nullptr);
  self(user).end(*call, error);
  return 0;
}

ssize_t ClientSession::Impl::read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most,
                                       std::uint32_t* flags, nghttp2_data_source* source, void*) {
  Call& call = *static_cast<Call*>(source->ptr);
  const std::size_t count = read_piece(call.piece, call.sent, out, most);
  call.sent += count;
  if (call.sent == kPrefixBytes + call.piece.bytes.size()) {
    *flags = NGHTTP2_DATA_FLAG_EOF;
    call.sent = kPrefixBytes;
    std::string().swap(call.piece.bytes);  // assigning would keep its memory
  }
  return static_cast<ssize_t>(count);
}

ClientSession::ClientSession(std::string authority, const ClientLimits& limits, std::function<void()> wants_to_send)
    : impl_(std::make_unique<Impl>(std::move(authority), limits, std::move(wants_to_send))) {}
ClientSession::~ClientSession() = default;
std::int32_t ClientSession::call(std::string_view path, std::string message, Done done, std::string_view traceparent) {
  return impl_->call(path, std::move(message), std::move(done), traceparent);
}
void ClientSession::give_up(std::int32_t stream) { impl_->give_up(stream); }
void ClientSession::lost(std::string why) { impl_->why_lost = std::move(why); }
bool ClientSession::takes_calls() const { return impl_->takes_calls(); }
bool ClientSession::feed(std::string_view bytes) { return impl_->feed(bytes); }
bool ClientSession::output(std::string* out, std::size_t most) { return impl_->output(out, most); }
bool ClientSession::over() const { return impl_->over(); }
std::size_t ClientSession::calls() const { return impl_->calls(); }

}  // namespace arlo::transport
