// What the parts of arlo._core register.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace arlo {

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
