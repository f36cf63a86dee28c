// Tests of the parts that kernels are made of, for the instruction set whose header the command line includes first.
#include <string>

#include "test_half_types.h"
#include "test_interpreter.h"
#include "test_pairs.h"
#include "test_panel.h"
#include "test_simd.h"

namespace regard {

int test_units() {
  using namespace REGARD_ISA;
  test_simd();
  test_half_types();
  test_pairs();
  test_panel();
  test_interpreter();
  return check::exit_status((std::string("units for ") + Ops::NAME).c_str());
}

}  // namespace regard
