// Compressed messages of gRPC and bodies of HTTP: opened, and packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace arlo::transport {

inline constexpr std::string_view kEncodings = "identity,deflate,gzip";

enum class Opened : std::uint8_t { kOk, kUnknownEncoding, kMalformed, kTooLarge };

// `encoding`: gzip or deflate (zlib's format), in any case. No more than `most_bytes` is ever written, so a
// message that swells costs its sender that much and no more. `*out` is empty where
// another than kOk is returned.
Opened open(std::string_view encoding, std::string_view message, std::size_t most_bytes, std::string* out);

// As gzip, quickly. Empty: it cannot be.
std::string packed(std::string_view bytes);

}  // namespace arlo::transport
