// C++ wrappers of nghttp2's C interface.
#pragma once

#include <malloc.h>
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace arlo::transport {

inline nghttp2_nv field(std::string_view name, std::string_view value) {
  // nghttp2 copies both, although its C interface takes non-const pointers.
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NONE};
}

// A header whose texts outlive the session: nothing is copied.
inline nghttp2_nv constant(std::string_view name, std::string_view value) {
  nghttp2_nv out = field(name, value);
  out.flags = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;
  return out;
}

inline std::string_view text(const std::uint8_t* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// Appends a session's output, up to about `most` bytes; false on failure.
inline bool append_output(nghttp2_session* session, std::string* out, std::size_t most) {
  const std::size_t before = out->size();
  while (out->size() - before < most) {
    const std::uint8_t* data = nullptr;
    const auto size = nghttp2_session_mem_send(session, &data);
    if (size < 0) return false;
    if (size == 0) break;
    out->append(text(data, static_cast<std::size_t>(size)));
  }
  return true;
}

// Allocates a session's memory like all other: the gateway keeps small pieces of it (base/small_memory.h).
inline nghttp2_mem* session_memory() {
  static nghttp2_mem memory{
      .mem_user_data = nullptr,
      .malloc = [](std::size_t size, void*) { return ::operator new(size, std::nothrow); },
      .free = [](void* old, void*) { ::operator delete(old); },
      .calloc =
          [](std::size_t count, std::size_t each, void*) {
            void* const made = ::operator new(count * each, std::nothrow);  // a few kilobytes at most
            return made == nullptr ? nullptr : std::memset(made, 0, count * each);
          },
      .realloc =
          [](void* old, std::size_t size, void*) {
            void* const made = ::operator new(size, std::nothrow);
            if (made == nullptr || old == nullptr) return made;
            std::memcpy(made, old, std::min(size, malloc_usable_size(old)));
            ::operator delete(old);
            return made;
          },
  };
  return &memory;
}

// nghttp2's session of one connection, as bytes in and bytes out: no sockets, no clock reads, no threads.
class Http2Session {
 public:
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  // Whether there is nothing more to read or write.
  [[nodiscard]] bool over() const {
    return nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0;
  }

 protected:
  // Appends bytes to send, up to about `most`. False: it failed, close at once.
  bool append(std::string* out, std::size_t most) {
    told_ = false;
    return append_output(session_, out, most);
  }
  // `wants_to_send`: output() has data; called again only after output() was called.
  explicit Http2Session(std::function<void()> wants_to_send) : wants_to_send_(std::move(wants_to_send)) {}
  ~Http2Session() { nghttp2_session_del(session_); }

  // Makes the session. `configure`: sets callbacks and options.
  template <class Make, class Configure>
  void start(Make make, void* user, Configure configure, const std::vector<nghttp2_settings_entry>& settings,
             std::uint32_t window) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_option* options = nullptr;
    if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&options) != 0) throw std::bad_alloc();
    configure(callbacks, options);
    const int made = make(&session_, callbacks, user, options, session_memory());
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(options);
    if (made != 0) throw std::bad_alloc();
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
    nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, static_cast<std::int32_t>(window));
  }
  void changed() {
    if (told_ || gone_ || nghttp2_session_want_write(session_) == 0) return;
    told_ = true;
    wants_to_send_();
  }
  // Takes received bytes, and returns how many; below 0: nghttp2's error.
  ssize_t receive(std::string_view bytes) {
    return nghttp2_session_mem_recv(session_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  nghttp2_session* session_ = nullptr;
  bool gone_ = false;  // it is being deleted
                       // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  std::function<void()> wants_to_send_;
  bool told_ = false;
};

}  // namespace arlo::transport
