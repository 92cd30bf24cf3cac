// A call of a ServerSession.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/grpc_message.h"
#include "transport/http2.h"
#include "transport/server_session.h"

namespace arlo::transport {

inline constexpr std::size_t kOpenedAtOnce = 256 << 10;  // bytes of a message to decompress
// Overhead of each header, as SETTINGS_MAX_HEADER_LIST_SIZE counts it (RFC 9113, 6.5.2).
inline constexpr std::size_t kHeaderOverhead = 32;
inline constexpr std::string_view kGrpc = "application/grpc";

// Reassembles a message, and decompresses it if it is compressed.
struct Opening {
  void run(std::size_t most_now) {
    if (compressed) {
      result = open(encoding, message.whole(), most_now, &bytes);
    } else {
      bytes = std::move(message.whole());
    }
  }

  std::string encoding;
  bool compressed;
  Message message;
  std::size_t most;
  std::string bytes;
  Opened result{};
};

// A call as far as its headers and its answer go.
class ServerSession::Answering : public ServerCall {
 public:
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::string_view header(std::string_view name) const override {
    const std::string_view all = header_text_;
    for (const Field& each : headers_) {
      if (all.substr(each.at, each.name) == name) return all.substr(each.at + each.name, each.value);
    }
    return {};
  }
  [[nodiscard]] const std::string& peer() const override { return session_.peer_; }
  [[nodiscard]] TimeNs deadline() const override { return deadline_; }
  [[nodiscard]] std::size_t unsent() const override { return unsent_; }
  [[nodiscard]] std::size_t waiting() const override { return pieces_.size() - next_piece_; }
  [[nodiscard]] TimeNs awaited_since() const { return awaited_since_; }
  [[nodiscard]] std::int32_t stream() const { return stream_; }

  void send(std::string message) override {
    if (finished_) return;
    begin_response();
    unsent_ += kPrefixBytes + message.size();
    pieces_.push_back({prefix_of(message.size()), std::move(message)});
    account();
    resume();
  }

  void finish(std::uint32_t status, std::string_view message, std::span<const Header> trailers) override {
    if (finished_) return;
    finished_ = true;
    await(0);
    status_ = std::to_string(status);
    if (!message.empty()) trailers_.push_back({"grpc-message", percent_encoded(message)});
    trailers_.insert(trailers_.end(), trailers.begin(), trailers.end());
    if (begun_) {
      resume();
      return;
    }
    begun_ = true;  // nothing was sent: the trailers are the headers
    std::vector<nghttp2_nv> fields{constant(":status", "200"), constant("content-type", kGrpc)};
    add_trailers(fields);
    nghttp2_submit_response(session_.session_, stream_, fields.data(), fields.size(), nullptr);
    session_.changed();
  }

  bool header(std::string_view name, std::string_view value) {
    header_bytes_ += name.size() + value.size() + kHeaderOverhead;
    if (header_bytes_ > session_.limits_.header_bytes) return false;
    if (name.front() == ':') {
      if (name == ":path") path_ = value;
      if (name == ":method") post_ = value == "POST";
      return true;
    }
    if (name == "content-type") {
      grpc_ = value.starts_with(kGrpc);
    } else if (name == "grpc-timeout") {
      // An invalid text counts as none.
      const auto timeout = parse_timeout(value);
      if (timeout) deadline_ = session_.now_ + *timeout;
    } else {
      if (headers_.empty()) {  // as many as most clients send
        headers_.reserve(8);
        header_text_.reserve(240);
      }
      headers_.push_back({header_text_.size(), name.size(), value.size()});
      header_text_.append(name).append(value);
    }
    return true;
  }

  ssize_t read(std::uint8_t* out, std::size_t most, std::uint32_t* flags) {
    std::size_t count = 0;
    while (count < most && next_piece_ < pieces_.size()) {
      Piece& piece = pieces_[next_piece_];
      const std::size_t some = read_piece(piece, at_, out + count, most - count);
      count += some;
      at_ += some;
      if (at_ == kPrefixBytes + piece.bytes.size()) {
        std::string().swap(piece.bytes);  // assigning would keep its memory
        ++next_piece_;
        at_ = 0;
      }
    }
    unsent_ -= count;
    if (count != 0) {
      account();
      if (handler_ != nullptr) handler_->sent();
    }
    const bool all = next_piece_ == pieces_.size();
    if (all) {
      pieces_.clear();
      next_piece_ = 0;
    }
    if (all && finished_) {
      *flags = NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      std::vector<nghttp2_nv> fields;
      add_trailers(fields);
      if (nghttp2_submit_trailer(session_.session_, stream_, fields.data(), fields.size()) != 0) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
      }
    } else if (count == 0) {
      deferred_ = true;
      return NGHTTP2_ERR_DEFERRED;
    }
    return static_cast<ssize_t>(count);
  }

 protected:
  Answering(ServerSession& session, std::int32_t stream) : session_(session), stream_(stream) {}
  ~Answering() = default;
  virtual void account() = 0;  // the bytes held have changed

  void await(TimeNs since) {
    if (awaited_since_ != 0) --session_.awaited_;
    if (since != 0) ++session_.awaited_;
    awaited_since_ = since;
  }

  void add_trailers(std::vector<nghttp2_nv>& fields) const {
    fields.reserve(fields.size() + 1 + trailers_.size());
    fields.push_back(field("grpc-status", status_));
    for (const Header& each : trailers_) fields.push_back(field(each.name, each.value));
  }

  void resume() {
    if (deferred_) {
      deferred_ = false;
      nghttp2_session_resume_data(session_.session_, stream_);
    }
    session_.changed();
  }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  ServerSession& session_;
  const std::int32_t stream_;
  std::unique_ptr<CallHandler> handler_;
  std::string path_;
  struct Field {  // in header_text_, its value after its name
    std::size_t at, name, value;
  };
  std::string header_text_;
  std::vector<Field> headers_;
  std::size_t header_bytes_ = 0;
  TimeNs deadline_ = kNever;
  bool post_ = false;
  bool grpc_ = false;
  TimeNs awaited_since_ = 0;  // since when the client's data is due
  bool begun_ = false;        // the response
  bool finished_ = false;     // nothing is added to it
  bool deferred_ = false;     // nghttp2 waits for resume_data
  std::vector<Piece> pieces_;
  std::size_t next_piece_ = 0;
  std::size_t at_ = 0;  // in the next piece
  std::size_t unsent_ = 0;
  std::string status_;
  std::vector<Header> trailers_;
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  void begin_response() {
    if (begun_) return;
    begun_ = true;
    const std::array<nghttp2_nv, 2> fields{constant(":status", "200"), constant("content-type", kGrpc)};
    nghttp2_data_provider provider{};
    provider.source.ptr = this;
    provider.read_callback = &ServerSession::read_data;
    nghttp2_submit_response(session_.session_, stream_, fields.data(), fields.size(), &provider);
  }
};

// The whole of it: also what it receives.
class ServerSession::Call final : public Answering {
 public:
  Call(ServerSession& session, std::int32_t stream)
      : Answering(session, stream), reader_(session.limits_.message_bytes) {}
  ~Call() {
    if (self_ != nullptr) *self_ = nullptr;
    await(0);
    unsent_ = 0;
    account();
    hold(0);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::list<Call>::iterator place;  // in calls_

  [[nodiscard]] std::size_t held() const { return given_up_ ? 0 : held_; }
  [[nodiscard]] TimeNs begun_at() const { return begun_at_; }
  [[nodiscard]] bool waits_for_client() const {
    return awaited_since_ != 0 || unsent_ != 0 || finished_ || (handler_ != nullptr && handler_->idle());
  }

  void freed(std::size_t bytes) override {
    taken_ -= std::min(taken_, bytes);
    account();
  }

  void pause(bool paused) override {
    paused_ = paused;
    go_on();
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
    if (handler_ == nullptr) {
      finish(kUnimplemented, "there is no method " + path_, {});
      return;
    }
    session_.called_ = true;
    unary_ = handler_->unary();
    if (unary_ && !finished_) await(session_.now_);
  }

  void data(std::string_view bytes) {
    // The connection's window is shared by all calls; the stream's opens when its bytes are wanted.
    nghttp2_session_consume_connection(session_.session_, bytes.size());
    if (unary_ && session_.unread_ > session_.limits_.unread_bytes && !std::exchange(behind_, true)) {
      session_.behind_.push_back(stream_);
    }
    if (waits()) {
      kept_.append(bytes);
      account();
      return;
    }
    nghttp2_session_consume_stream(session_.session_, stream_, bytes.size());
    take_in(bytes);
  }

  void take_in(std::string_view bytes) {
    if (handler_ == nullptr || refused_) return;
    std::size_t whole = 0;
    const auto result = reader_.feed(bytes, [this, &whole](Message message, bool compressed) {
      ++whole;
      if (finished_ || refused_) return;
      if (opening_ != nullptr) {
        aside_bytes_ += message.size();
        later_.emplace_back(std::move(message), compressed);
      } else {
        take(std::move(message), compressed);
      }
    });
    if (result == MessageReader::Result::kTooLarge) refuse(kResourceExhausted, too_large(reader_.length()));
    if (result == MessageReader::Result::kMalformed) refuse(kInternal, "what was sent is no gRPC message");
    // Between the messages of a stream no time limit applies.
    if (!finished_ && !unary_) {
      const bool same = whole == 0 && awaited_since_ != 0;
      await(!reader_.within() ? 0 : same ? awaited_since_ : session_.now_);
    }
    account();
  }

  // The client has taken enough of its answers.
  void let_on() {
    behind_ = false;
    go_on();
  }

  void half_closed() {
    if (!kept_.empty() || opening_ != nullptr) {
      ended_ = true;
      return;
    }
    if (handler_ == nullptr || refused_ || finished_) return;
    await(0);
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

  // It holds too much, or took too long: it ends, regardless of its handler.
  void give_up(std::uint32_t status, std::string_view why) {
    session_.service_.offended(session_.peer_, why);
    given_up_ = true;
    taken_ = 0;
    if (!begun_) {
      refuse(status, "more than the limit: " + std::string(why));
      return;
    }
    finished_ = refused_ = true;
    await(0);
    pieces_.clear();
    next_piece_ = at_ = unsent_ = 0;
    reader_.drop();
    std::string().swap(kept_);
    account();
    nghttp2_submit_rst_stream(session_.session_, NGHTTP2_FLAG_NONE, stream_, NGHTTP2_ENHANCE_YOUR_CALM);
    session_.changed();
  }

  // Uses the wording of gRPC's libraries, which programs look for. `bytes`: 0 if the number is unknown.
  [[nodiscard]] std::string too_large(std::size_t bytes) const {
    const std::string limit = std::to_string(session_.limits_.message_bytes);
    const std::string size = bytes == 0 ? "more than " + limit : std::to_string(bytes) + " vs. " + limit;
    return "Received message larger than max (" + size + ")";
  }

  // Whether the client has taken nothing of its waiting answer at any look for this long.
  bool stalled(TimeNs now, TimeNs most) {
    if (unsent_ == 0 || std::exchange(seen_unsent_, unsent_) != unsent_ || stalled_since_ == 0) {
      stalled_since_ = unsent_ == 0 ? 0 : now;
    }
    return stalled_since_ != 0 && now - stalled_since_ > most;
  }

 private:
  // Whether received data is kept for later.
  [[nodiscard]] bool waits() const { return (paused_ || opening_ != nullptr || behind_) && !refused_; }

  void go_on() {
    while (!later_.empty() && !waits()) {
      auto [message, compressed] = std::move(later_.front());
      later_.erase(later_.begin());
      aside_bytes_ -= message.size();
      if (!finished_ && !refused_) take(std::move(message), compressed);
    }
    if (waits()) return;
    if (!kept_.empty()) {
      std::string kept;
      kept.swap(kept_);
      nghttp2_session_consume_stream(session_.session_, stream_, kept.size());
      take_in(kept);
    }
    if (!waits() && std::exchange(ended_, false)) half_closed();
    account();
    session_.changed();
  }

  void take(Message message, bool compressed) {
    const bool small = message.size() <= kOpenedAtOnce;
    if (small && !compressed) {
      hand_over(std::move(message.whole()));
      return;
    }
    const std::size_t most = session_.limits_.message_bytes;
    Opening job{std::string(header("grpc-encoding")), compressed, std::move(message), most, {}, {}};
    if (small) {
      job.run(std::min(most, kOpenedAtOnce));
      if (job.result != Opened::kTooLarge || most <= kOpenedAtOnce) {
        opened(std::move(job));
        return;
      }
    }
    // A large or expanding message takes a while, during which other connections are served.
    const std::size_t bytes = job.message.size();
    aside_bytes_ += bytes;
    opening_ = std::make_shared<Opening>(std::move(job));
    if (self_ == nullptr) self_ = std::make_shared<Call*>(this);
    session_.service_.aside(
        &session_,
        [awaited = std::weak_ptr(opening_)] {
          const auto kept = awaited.lock();
          if (kept != nullptr) kept->run(kept->most);
        },
        [bytes, self = self_] {
          if (*self == nullptr) return;
          Call& call = **self;
          const auto kept = std::exchange(call.opening_, nullptr);
          call.aside_bytes_ -= bytes;
          if (!call.refused_ && !call.finished_) call.opened(std::move(*kept));
          call.go_on();
        });
  }

  void opened(Opening job) {
    switch (job.result) {
      case Opened::kOk:
        hand_over(std::move(job.bytes));
        return;
      case Opened::kTooLarge:
        refuse(kResourceExhausted, too_large(0));
        return;
      case Opened::kMalformed:
        refuse(kInternal, "a message is not compressed as grpc-encoding says");
        return;
      case Opened::kUnknownEncoding:
        const std::vector<Header> known{{"grpc-accept-encoding", std::string(kEncodings)}};
        refuse(kUnimplemented, "grpc-encoding '" + job.encoding + "' is not known here", known);
        return;
    }
  }

  // Received data is ignored from now on.
  void refuse(std::uint32_t status, std::string_view message, std::span<const Header> trailers = {}) {
    refused_ = true;
    reader_.drop();
    std::string().swap(kept_);
    finish(status, message, trailers);
    account();
  }

  void hand_over(std::string message) {
    taken_ += message.size();
    handler_->message(std::move(message));
  }

  void hold(std::size_t bytes) {
    Memory& memory = session_.memory_;
    if (session_.held_ != 0) --memory.holders;
    session_.held_ += bytes - held_;
    memory.used += bytes - held_;
    if (session_.held_ != 0) ++memory.holders;
    memory.peak = std::max(memory.peak, memory.used);
    held_ = bytes;
  }

  void account() override {
    if (std::exchange(owes_, unsent_ != 0) != (unsent_ != 0)) {
      if (owes_) {
        ++session_.owing_;
      } else {
        --session_.owing_;
      }
    }
    if (unary_) session_.unread_ += unsent_ - std::exchange(unread_, unsent_);
    hold(reader_.held() + kept_.size() + aside_bytes_ + taken_ + unsent_);
  }

  bool unary_ = false;  // as its handler reports
  MessageReader reader_;
  const TimeNs begun_at_ = session_.now_;
  std::shared_ptr<Call*> self_;                  // for work aside; null in it once the call is gone
  std::shared_ptr<Opening> opening_;             // a message being opened aside; this is the only owner
  std::vector<std::pair<Message, bool>> later_;  // messages that came after it, and whether compressed
  std::size_t aside_bytes_ = 0;                  // of all these
  bool paused_ = false;
  std::string kept_;       // bytes that came while it was paused
  bool ended_ = false;     // their end came as well
  std::size_t taken_ = 0;  // bytes of messages handed over and not freed
  std::size_t held_ = 0;   // in the session's count
  bool given_up_ = false;
  bool refused_ = false;         // received data is ignored
  std::size_t seen_unsent_ = 0;  // at the last look
  TimeNs stalled_since_ = 0;
  bool owes_ = false;       // unsent_, in the session's count
  std::size_t unread_ = 0;  // in the session's count
  bool behind_ = false;     // received data is kept until the client has taken more of its answers
};

}  // namespace arlo::transport
