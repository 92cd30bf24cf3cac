// Compression of gRPC messages and HTTP bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace arlo::transport {

inline constexpr std::string_view kEncodings = "identity,deflate,gzip";

enum class Opened : std::uint8_t { kOk, kUnknownEncoding, kMalformed, kTooLarge };

// Decompresses. `encoding`: gzip or deflate (zlib's format), in any case. Never writes more than `most_bytes`, so an
// expanding message costs its sender no more than that. `*out` is empty unless kOk is returned.
Opened open(std::string_view encoding, std::string_view message, std::size_t most_bytes, std::string* out);

// Compresses with gzip, quickly. Empty on failure.
std::string packed(std::string_view bytes);

}  // namespace arlo::transport
