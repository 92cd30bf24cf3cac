// What is embedded in the program: the page at / and the description of the API. page.html and openapi.json beside this
// file; made by the build.
#pragma once

#include <string_view>

namespace arlo::gateway {

extern const std::string_view kPage;
extern const std::string_view kOpenApi;
// The page runs its own script and talks to this gateway, and nothing else.
inline constexpr std::string_view kPageHeaders =
    "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n";

}  // namespace arlo::gateway
