# C++ message and service classes. Ours come from proto/; Triton's come from the descriptors inside the installed
# `tritonclient`, so that no .proto of another project is copied here.
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Python 3.11 COMPONENTS Interpreter REQUIRED)
if(ARLO_BUILD_GATEWAY)
  pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)  # of the load generator
endif()

# Builds with sanitizers take the classes from the build folder of the install: generated code, like libprotobuf itself,
# is not what sanitizers are for, and it is much of what there is to compile.
set(ARLO_GENERATED "" CACHE PATH "A build folder that has the generated classes compiled")
if(ARLO_GENERATED)
  add_library(arlo_proto STATIC IMPORTED GLOBAL)
  set_target_properties(arlo_proto PROPERTIES IMPORTED_LOCATION ${ARLO_GENERATED}/libarlo_proto.a)
  target_include_directories(arlo_proto INTERFACE ${ARLO_GENERATED}/gen)
  target_link_libraries(arlo_proto INTERFACE protobuf::libprotobuf Threads::Threads)
  return()
endif()

set(ARLO_GEN ${CMAKE_BINARY_DIR}/gen)
set(KSERVE_FDS ${ARLO_GEN}/kserve.binpb)
file(MAKE_DIRECTORY ${ARLO_GEN})

execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/kserve_descriptors.py ${KSERVE_FDS}
  RESULT_VARIABLE result OUTPUT_VARIABLE kserve_files ERROR_VARIABLE error OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "The Triton protocol could not be read from the Python package tritonclient "
    "(${Python_EXECUTABLE}): ${error}\nInstall it: pip install 'tritonclient[grpc]'")
endif()

set(kserve_out "")
set(kserve_cc "")
foreach(f IN LISTS kserve_files)
  string(REGEX REPLACE "\\.proto$" "" stem ${f})
  list(APPEND kserve_out ${ARLO_GEN}/${stem}.pb.cc ${ARLO_GEN}/${stem}.pb.h)
  list(APPEND kserve_cc ${ARLO_GEN}/${stem}.pb.cc)
endforeach()
list(GET kserve_files -1 kserve_service)
string(REGEX REPLACE "\\.proto$" "" kserve_stem ${kserve_service})
add_custom_command(OUTPUT ${kserve_out}
  COMMAND protobuf::protoc --descriptor_set_in=${KSERVE_FDS} --cpp_out=${ARLO_GEN} ${kserve_files}
  DEPENDS ${KSERVE_FDS} VERBATIM)
# One stable include name whatever the package calls its file. Written only when it changes, so that nothing is rebuilt.
file(CONFIGURE OUTPUT ${ARLO_GEN}/kserve.h CONTENT "#pragma once\n#include \"${kserve_stem}.pb.h\"\n")

set(PROTO_DIR ${CMAKE_CURRENT_SOURCE_DIR}/proto)
set(ARLO_FDS ${ARLO_GEN}/arlo.binpb)
add_custom_command(
  OUTPUT ${ARLO_GEN}/arlo/v1/config.pb.cc ${ARLO_GEN}/arlo/v1/config.pb.h ${ARLO_GEN}/arlo/v1/admin.pb.cc
         ${ARLO_GEN}/arlo/v1/admin.pb.h ${ARLO_FDS}
  COMMAND protobuf::protoc -I${PROTO_DIR} --cpp_out=${ARLO_GEN} --include_imports --descriptor_set_out=${ARLO_FDS}
    arlo/v1/config.proto arlo/v1/admin.proto
  DEPENDS ${PROTO_DIR}/arlo/v1/config.proto ${PROTO_DIR}/arlo/v1/admin.proto VERBATIM)
add_custom_command(OUTPUT ${ARLO_GEN}/health/health.pb.cc ${ARLO_GEN}/health/health.pb.h
  COMMAND protobuf::protoc -I${PROTO_DIR} --cpp_out=${ARLO_GEN} health/health.proto
  DEPENDS ${PROTO_DIR}/health/health.proto VERBATIM)

# Messages only: the gateway needs no gRPC.
add_library(arlo_proto STATIC EXCLUDE_FROM_ALL ${kserve_cc} ${ARLO_GEN}/arlo/v1/config.pb.cc ${ARLO_GEN}/arlo/v1/admin.pb.cc
  ${ARLO_GEN}/health/health.pb.cc)
target_include_directories(arlo_proto SYSTEM PUBLIC ${ARLO_GEN})
target_link_libraries(arlo_proto PUBLIC protobuf::libprotobuf Threads::Threads)
set_target_properties(arlo_proto PROPERTIES UNITY_BUILD OFF)  # private names of generated code meet
# Generated code is not in the data path, which reads and writes the protocol by hand; at -O3 it takes a minute to compile.
target_compile_options(arlo_proto PRIVATE -O1)
if(ARLO_SANITIZE)
  target_compile_options(arlo_proto PRIVATE -fno-sanitize=all)
endif()
