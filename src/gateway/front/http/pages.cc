#include "gateway/front/http/pages.h"

namespace arlo::gateway {
namespace {

#include "pages.inc"

template <std::size_t size>
std::string_view text_of(const unsigned char (&bytes)[size]) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::string_view start_page() { return text_of(kPage); }
std::string_view openapi_document() { return text_of(kOpenApi); }

}  // namespace arlo::gateway
