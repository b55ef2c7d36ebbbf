# find_package(coroner), then target_link_libraries(app PRIVATE coroner::static) or coroner::shared.
get_filename_component(CORONER_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET coroner::static)
    add_library(coroner::static STATIC IMPORTED)
    set_target_properties(coroner::static PROPERTIES
        IMPORTED_LOCATION "${CORONER_PREFIX}/lib/libcoroner_ffi.a"
        INTERFACE_INCLUDE_DIRECTORIES "${CORONER_PREFIX}/include"
        INTERFACE_LINK_LIBRARIES "@SYSTEM_LIBRARIES@")
    add_library(coroner::shared SHARED IMPORTED)
    set_target_properties(coroner::shared PROPERTIES
        IMPORTED_LOCATION "${CORONER_PREFIX}/@SHARED@"
        @NAME_PROPERTY@
        INTERFACE_INCLUDE_DIRECTORIES "${CORONER_PREFIX}/include")
endif()
