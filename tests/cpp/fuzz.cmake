# The libFuzzer targets, each with seeds and a dictionary that a small program writes into the build folder.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "libFuzzer comes with clang: configure with `cmake --preset fuzz`")
endif()
# The code that is looked at alone steers the fuzzer: neither protobuf's nor that of the checks.
target_compile_options(arlo_rewrite PRIVATE -fsanitize=fuzzer-no-link)
target_compile_options(arlo_transport PRIVATE -fsanitize=fuzzer-no-link)
target_compile_options(arlo_flow PRIVATE -fsanitize=fuzzer-no-link)
target_compile_options(arlo_dispatch PRIVATE -fsanitize=fuzzer-no-link)
pkg_check_modules(NGHTTP2 REQUIRED IMPORTED_TARGET libnghttp2)

add_custom_target(fuzz)
function(add_fuzz_target name)
  cmake_parse_arguments(PARSE_ARGV 1 of "" "" "LIBRARIES;SOURCES;SEED_SOURCES")
  add_executable(fuzz_${name} fuzz_${name}.cc ${of_SOURCES})
  target_link_libraries(fuzz_${name} PRIVATE ${of_LIBRARIES})
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  add_executable(seeds_${name} seeds_${name}.cc ${of_SEED_SOURCES})
  target_link_libraries(seeds_${name} PRIVATE ${of_LIBRARIES})
  # What the fuzzer instruments calls back into it.
  target_link_options(seeds_${name} PRIVATE -fsanitize=fuzzer-no-link)
  set(seeds ${CMAKE_BINARY_DIR}/seeds/fuzz_${name})
  add_custom_command(OUTPUT ${seeds}.dict COMMAND seeds_${name} ${seeds} ${seeds}.dict VERBATIM)
  add_custom_target(write_seeds_${name} DEPENDS ${seeds}.dict)
  add_dependencies(fuzz fuzz_${name} write_seeds_${name})
endfunction()

add_fuzz_target(infer_request LIBRARIES arlo_rewrite SOURCES gateway_fixture.cc gateway_reference.cc
  SEED_SOURCES gateway_fixture.cc)
add_fuzz_target(client_session LIBRARIES arlo_transport PkgConfig::NGHTTP2)
add_fuzz_target(server_session LIBRARIES arlo_transport PkgConfig::NGHTTP2)
add_fuzz_target(pipeline LIBRARIES arlo_flow)
