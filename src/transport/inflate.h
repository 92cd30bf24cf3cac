// Compressed gRPC messages, opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace arlo::transport {

inline constexpr std::string_view kEncodings = "identity,deflate,gzip";

enum class Opened : std::uint8_t { kOk, kUnknownEncoding, kMalformed, kTooLarge };

// `encoding`: a name of grpc-encoding, gzip or deflate (zlib's format). No more than `most_bytes` is ever written, so a
// message that swells costs its sender that much and no more. `*out` is of use where kOk is returned.
Opened open(std::string_view encoding, std::string_view message, std::size_t most_bytes, std::string* out);

}  // namespace arlo::transport
