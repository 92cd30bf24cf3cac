#include "transport/client_session.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "transport/grpc_message.h"

namespace arlo::transport {
namespace {

constexpr std::uint32_t kUnknown = 2;

}  // namespace

// One unary call.
struct ClientSession::Call {
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

ClientSession::ClientSession(std::string authority, const ClientLimits& limits, std::function<void()> wants_to_send)
    : Http2Session(std::move(wants_to_send)), authority_(std::move(authority)), limits_(limits) {
  const auto configure = [](nghttp2_session_callbacks* callbacks, nghttp2_option* options) {
    nghttp2_session_callbacks_set_on_header_callback(callbacks, &on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &on_close);
    // Headers are not validated as HTTP: we look at three of an answer's, and pass none on.
    nghttp2_option_set_no_http_messaging(options, 1);
  };
  start(&nghttp2_session_client_new3, this, configure,
        {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0}, {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window}},
        limits.connection_window);
}

ClientSession::~ClientSession() {
  gone_ = true;
  while (!calls_.empty()) {
    calls_.front().fault = why_lost_;
    end(calls_.front(), NGHTTP2_CANCEL);
  }
}

std::size_t ClientSession::calls() const { return calls_.size(); }

ClientSession::Call* ClientSession::find(std::int32_t stream) const {
  return static_cast<Call*>(nghttp2_session_get_stream_user_data(session_, stream));
}

std::int32_t ClientSession::call(std::string_view path, std::string message, Done done, std::string_view traceparent) {
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
  provider.read_callback = &read_data;
  const auto stream = nghttp2_submit_request(session_, nullptr, fields.data(), count, &provider, &call);
  if (stream < 0) {
    call.fault = "the connection takes no further calls";
    end(call, NGHTTP2_REFUSED_STREAM);
    return stream;
  }
  changed();
  return stream;
}

void ClientSession::give_up(std::int32_t stream) {
  if (stream <= 0 || find(stream) == nullptr) return;
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
  changed();
}

bool ClientSession::feed(std::string_view bytes) {
  const auto taken = receive(bytes);
  changed();
  return taken == static_cast<ssize_t>(bytes.size()) && !over();
}

void ClientSession::end(Call& call, std::uint32_t error) {
  std::list<Call> ending;
  ending.splice(ending.begin(), calls_, call.place);
  Answer& answer = call.answer;
  if (!call.fault.empty() && error == NGHTTP2_NO_ERROR) {
    answer = {call.fault_status, std::move(call.fault), {}};
  } else if (call.status) {
    answer.status = *call.status;
    if (answer.status != 0) answer.bytes.clear();
    if (answer.status == 0 && call.messages != 1) answer = {kInternal, "an answer without a message", {}};
  } else if (error == NGHTTP2_NO_ERROR) {
    answer = {kUnknown, "the server answers with HTTP status " + call.http_status, {}};
  } else {
    const bool unsent = error == NGHTTP2_REFUSED_STREAM;
    answer = {
        kUnavailable, call.fault.empty() ? nghttp2_http2_strerror(error) : std::move(call.fault), {}, true, unsent};
  }
  call.done(std::move(answer));
}

int ClientSession::on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                             std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t,
                             void* user) {
  Call* call = self(user).find(frame->hd.stream_id);
  if (call == nullptr) return 0;
  const std::string_view what = text(name, name_size);
  const std::string_view said = text(value, value_size);
  if (what == "grpc-status") {
    std::uint32_t status = kUnknown;
    call->status = read_number(said, &status) ? status : kUnknown;
  } else if (what == "grpc-message") {
    call->answer.message = percent_decoded(said);
  } else if (what == ":status") {
    call->http_status = said;
  }
  return 0;
}

int ClientSession::on_data(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
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

int ClientSession::on_close(nghttp2_session* session, std::int32_t stream, std::uint32_t error, void* user) {
  Call* call = self(user).find(stream);
  if (call == nullptr) return 0;
  nghttp2_session_set_stream_user_data(session, stream, nullptr);
  self(user).end(*call, error);
  return 0;
}

ssize_t ClientSession::read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most,
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

}  // namespace arlo::transport
