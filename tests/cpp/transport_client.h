// nghttp2's client of a ServerSession, bytes handed over in memory.
#pragma once

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/server_session.h"

namespace arlo::transport {

struct Reply {
  std::map<std::string, std::string> headers;
  std::string data;
  bool closed = false;
  std::uint32_t error = 0;
};

class Client {
 public:
  // `window`: for each answer; without one HTTP/2's own.
  explicit Client(ServerSession& server, std::optional<std::uint32_t> window = {}) : server_(server) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                      const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* user) {
          auto& client = *static_cast<Client*>(user);
          const std::string said(reinterpret_cast<const char*>(value), value_size);
          const std::string_view what(reinterpret_cast<const char*>(name), name_size);
          client.replies[frame->hd.stream_id].headers[std::string(what)] = said;
          if (what == "grpc-status") client.statuses.push_back(said);
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data, std::size_t size,
                      void* user) {
          static_cast<Client*>(user)->replies[stream].data.append(reinterpret_cast<const char*>(data), size);
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks, [](nghttp2_session*, std::int32_t stream, std::uint32_t error, void* user) {
          auto& client = *static_cast<Client*>(user);
          client.replies[stream].closed = true;
          client.replies[stream].error = error;
          client.errors.push_back(error);
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* user) {
          if (frame->hd.type == NGHTTP2_GOAWAY) static_cast<Client*>(user)->went_away = frame->goaway.error_code;
          return 0;
        });
    nghttp2_session_client_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    const nghttp2_settings_entry setting{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window.value_or(0)};
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &setting, window ? 1 : 0);
  }
  ~Client() { nghttp2_session_del(session_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  std::int32_t call(const std::string& path, std::string body, bool end = true,
                    const std::vector<std::pair<std::string, std::string>>& more = {}) {
    std::vector<std::pair<std::string, std::string>> all{{":method", "POST"},
                                                         {":scheme", "http"},
                                                         {":path", path},
                                                         {":authority", "a"},
                                                         {"content-type", "application/grpc"}};
    const auto usual = static_cast<std::ptrdiff_t>(all.size());
    for (const auto& each : more) {
      const auto last = all.begin() + usual;
      const auto same = std::find_if(all.begin(), last, [&](const auto& h) { return h.first == each.first; });
      if (same != last) {
        same->second = each.second;
      } else {
        all.push_back(each);
      }
    }
    std::vector<nghttp2_nv> fields;
    for (auto& [name, value] : all) {
      fields.push_back({reinterpret_cast<std::uint8_t*>(name.data()), reinterpret_cast<std::uint8_t*>(value.data()),
                        name.size(), value.size(), NGHTTP2_NV_FLAG_NONE});
    }
    auto source = std::make_unique<Body>(Body{std::move(body), 0, end});
    nghttp2_data_provider provider{};
    provider.source.ptr = source.get();
    provider.read_callback = [](nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most,
                                std::uint32_t* flags, nghttp2_data_source* from, void*) -> ssize_t {
      auto& sent = *static_cast<Body*>(from->ptr);
      const std::size_t some = std::min(most, sent.bytes.size() - sent.at);
      std::copy_n(sent.bytes.begin() + static_cast<std::ptrdiff_t>(sent.at), some, out);
      sent.at += some;
      if (sent.at == sent.bytes.size()) {
        if (sent.end) {
          *flags = NGHTTP2_DATA_FLAG_EOF;
        } else if (some == 0) {
          return NGHTTP2_ERR_DEFERRED;
        }
      }
      return static_cast<ssize_t>(some);
    };
    bodies_.push_back(std::move(source));
    return nghttp2_submit_request(session_, nullptr, fields.data(), fields.size(), &provider, nullptr);
  }

  // Sends more of the body of the call that was the `which`th.
  void more(std::int32_t stream, std::size_t which, const std::string& bytes) {
    bodies_[which]->bytes += bytes;
    nghttp2_session_resume_data(session_, stream);
  }
  void reset(std::int32_t stream) { nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL); }

  // Hands over what this one has to say.
  void say() {
    const std::uint8_t* data = nullptr;
    for (ssize_t size = 0; (size = nghttp2_session_mem_send(session_, &data)) > 0;) {
      good_ = server_.feed({reinterpret_cast<const char*>(data), static_cast<std::size_t>(size)}, now) && good_;
    }
  }

  // Hands over what both have to say, until neither has anything. False: the server wants no more.
  bool talk() {
    for (bool more = true; more;) {
      more = false;
      const std::uint8_t* data = nullptr;
      for (ssize_t size = 0; (size = nghttp2_session_mem_send(session_, &data)) > 0; more = true) {
        good_ = server_.feed({reinterpret_cast<const char*>(data), static_cast<std::size_t>(size)}, now) && good_;
      }
      std::string out;
      if (!server_.output(&out, 1U << 20)) return false;
      if (!out.empty()) {
        more = true;
        nghttp2_session_mem_recv(session_, reinterpret_cast<const std::uint8_t*>(out.data()), out.size());
      }
    }
    return good_;
  }

  [[nodiscard]] nghttp2_session* session() const { return session_; }

  std::map<std::int32_t, Reply> replies;
  std::vector<std::string> statuses;  // of all calls, as they come
  std::vector<std::uint32_t> errors;  // of closed streams
  std::uint32_t went_away = 0xffffffff;
  TimeNs now = 1000;

 private:
  struct Body {
    std::string bytes;
    std::size_t at;
    bool end;
  };
  ServerSession& server_;
  nghttp2_session* session_ = nullptr;
  std::vector<std::unique_ptr<Body>> bodies_;
  bool good_ = true;
};

}  // namespace arlo::transport
