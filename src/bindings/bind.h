// What the parts of arlo._core register.
#pragma once

#include <nanobind/nanobind.h>

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
