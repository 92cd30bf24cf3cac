// Thin C++ wrappers of nghttp2's C interface.
#pragma once

#include <malloc.h>
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

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

inline bool is_over(nghttp2_session* session) {
  return nghttp2_session_want_read(session) == 0 && nghttp2_session_want_write(session) == 0;
}

}  // namespace arlo::transport
