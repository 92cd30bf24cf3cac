# Makes a C++ file of what is embedded: cmake -DPAGE=page.html -DOPENAPI=openapi.json -DOUT=page.cc -P page.cmake
file(READ ${PAGE} page)
file(READ ${OPENAPI} openapi)
file(WRITE ${OUT} "#include \"gateway/front/page.h\"
namespace arlo::gateway {
const std::string_view kPage = R\"embedded(${page})embedded\";
const std::string_view kOpenApi = R\"embedded(${openapi})embedded\";
}  // namespace arlo::gateway
")
