// Static pages of the HTTP API's port: the page at / and the description at /openapi.json (folder pages).
#pragma once

#include <string_view>

namespace arlo::gateway {

std::string_view start_page();        // HTML
std::string_view openapi_document();  // JSON

}  // namespace arlo::gateway
