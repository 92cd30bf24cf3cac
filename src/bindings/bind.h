// What the parts of arlo._core register.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dispatch/types.h"

namespace arlo {

// Arrays cross as contiguous NumPy columns: views come in, and vectors that Python owns then go out.
template <typename T>
using Input = nanobind::ndarray<const T, nanobind::numpy, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Output = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

template <typename T>
std::span<const T> view(const Input<T>& array) {
  return {array.data(), array.size()};
}

template <typename T>
Output<T> array(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Output<T>(kept->data(), {kept->size()}, owner);
}

// One member of many structures.
template <typename T, typename Row, typename Member>
Output<T> column(const std::vector<Row>& rows, Member Row::* member) {
  std::vector<T> values;
  values.reserve(rows.size());
  for (const Row& row : rows) values.push_back(static_cast<T>(row.*member));
  return array(std::move(values));
}

// A latency profile: (tokens, rows, ns).
inline std::vector<dispatch::LatencyPoint> points(
    const std::vector<std::tuple<std::int32_t, std::int32_t, TimeNs>>& given) {
  std::vector<dispatch::LatencyPoint> made;
  for (const auto& [length, batch, ns] : given) made.push_back({length, batch, ns});
  return made;
}

// The value of an enum, counted from 0, that has this name. Throws std::invalid_argument.
template <typename Enum>
Enum named(const std::string& name, std::initializer_list<const char*> names) {
  int number = 0;
  for (const char* each : names) {
    if (name == each) return static_cast<Enum>(number);
    ++number;
  }
  throw std::invalid_argument("unknown name '" + name + "'");
}

}  // namespace arlo

namespace arlo::solve {
void bind(nanobind::module_& m);
}  // namespace arlo::solve

namespace arlo::flow {
void bind(nanobind::module_& m);
}  // namespace arlo::flow

namespace arlo::flow::pipeline {
void bind(nanobind::module_& m);
}  // namespace arlo::flow::pipeline

namespace arlo::simulate {
class Engine;
void bind_pipeline(nanobind::class_<Engine>& engine);
void bind_tokens(nanobind::module_& m);
void bind(nanobind::module_& m);
}  // namespace arlo::simulate

namespace arlo::text {
void bind(nanobind::module_& m);
}  // namespace arlo::text
