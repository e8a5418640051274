// A table whose cells are parts of it. The toolkit's own way, a template for each kind of cell, makes all of them anew
// whenever anything on the page changes: the focus, a selection of text and a click half done would be lost each time.
export default {
  template: `
    <q-table ref="qRef" :columns="columns">
      <template v-slot:body-cell="cell">
        <q-td :props="cell" :title="cell.col.kind === 'cut' ? cell.value : undefined">
          <template v-if="cell.col.kind === 'link'">
            <a v-if="cell.value" :href="cell.value.href">{{ cell.value.text }}</a>
          </template>
          <template v-else-if="cell.col.kind === 'badge'">
            <span v-if="cell.value" class="tl-badge" :class="cell.value.tone">{{ cell.value.text }}</span>
          </template>
          <span v-else-if="cell.col.kind === 'number'" :class="{ 'tl-zero': cell.value === '0' }">{{ cell.value }}</span>
          <q-btn v-else-if="cell.col.kind === 'button'" flat dense no-caps size="12px" padding="2px 10px" class="tl-danger"
            :label="cell.col.press" @click="$emit(cell.col.name, cell.row.id)" />
          <template v-else>{{ cell.value }}</template>
        </q-td>
      </template>
    </q-table>
  `,
  props: {
    columns: Array,
  },
};
