# How everything is compiled: C11 with warnings, hidden symbols, and no contraction of
# floating-point expressions (bits must not depend on whether a compiler fuses a * b + c).
include(CheckCCompilerFlag)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

# -g costs no speed and makes a core dump of a user's run readable; NDEBUG is left out because the
# few asserts there are cost nothing.
set(CMAKE_C_FLAGS_RELEASE "-O3 -g")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

add_library(lockstep_compile INTERFACE)
target_compile_definitions(lockstep_compile INTERFACE _GNU_SOURCE)
target_compile_options(lockstep_compile INTERFACE
  -ffp-contract=off -fno-math-errno -fno-trapping-math
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes
  -Wmissing-prototypes -Wvla -Wundef -Wno-missing-field-initializers)
if(LS_WERROR)
  target_compile_options(lockstep_compile INTERFACE -Werror)
endif()

if(LS_MARCH)
  check_c_compiler_flag(-march=${LS_MARCH} LS_MARCH_WORKS_${LS_MARCH})
  if(NOT LS_MARCH_WORKS_${LS_MARCH})
    message(FATAL_ERROR "${CMAKE_C_COMPILER} does not know -march=${LS_MARCH}; "
                        "give another one with -DLS_MARCH=…, or -DLS_MARCH= for its default")
  endif()
  target_compile_options(lockstep_compile INTERFACE -march=${LS_MARCH})
endif()

# For whole folders, not lockstep_compile: also what links a test must carry the sanitizer.
if(LS_SANITIZE)
  add_compile_options(-fsanitize=${LS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LS_SANITIZE})
endif()
