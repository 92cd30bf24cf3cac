// What the parts of arlo._core register.
#pragma once

#include <nanobind/nanobind.h>

namespace arlo::allocate {
void bind(nanobind::module_& m);
}  // namespace arlo::allocate

namespace arlo::simulate {
void bind(nanobind::module_& m);
}  // namespace arlo::simulate
